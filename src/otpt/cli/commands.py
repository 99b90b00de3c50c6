"""The commands by group, their list, and running one."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Sequence

from otpt.cli import terminal
from otpt.errors import OtptError
from otpt.plugins import import_plugins

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Classify images": {
        "predict": ("predict", "classify images"),
        "embed": ("predict", "image features in a Parquet file"),
        "serve": ("serve", "predictions over HTTP, with a web page"),
        "calibrate": ("calibrate", "fit a calibration on labelled images"),
        "export": ("labels", "a classifier as an ONNX file"),
    },
    "Evaluate methods": {
        "demo": ("demo", "four methods on the embedded model and bench, no download"),
        "evaluate": ("evaluate", "accuracy and calibration of methods on data sets"),
        "sweep": ("evaluate", "methods under many settings or prompts"),
        "train coop": ("train", "learn the context's vectors (CoOp)"),
        "train maple": ("train", "learn prompts in both towers (MaPLe)"),
        "plan": ("plan", "predict time and memory without running anything"),
        "reproduce": ("reproduce", "plan or run a paper's tables"),
    },
    "Read results": {
        "metrics": ("results", "metrics of a run, from its rows"),
        "compare": ("results", "paired tests of two methods on the same images"),
        "table": ("results", "tables of runs in the paper's layouts"),
        "plot": ("results", "figures of runs"),
        "report": ("results", "one HTML page of runs"),
    },
    "Look things up": {
        "datasets": ("lists", "data sets, and which are present"),
        "datasets check": ("lists", "verify a data set and open a sample of its images"),
        "datasets get": ("lists", "download a data set"),
        "methods": ("lists", "the parts of method names"),
        "models": ("lists", "backbones"),
        "cache": ("lists", "show or empty the feature cache"),
        "doctor": ("lists", "versions, hardware, missing packages"),
        "completion": ("lists", "completion script for a shell"),
    },
}
"""Group → command → (module, help). The last word of the command is the function."""

ELSEWHERE = {
    "help": "write otpt --help",
    "version": "write otpt --version",
    "list": "write otpt methods, otpt models or otpt datasets",
    "classify": "write otpt predict",
    "encode": "write otpt embed",
    "features": "write otpt embed",
    "benchmark": "write otpt evaluate",
    "--model": "write --backbone NAME/TAG",
    "--pretrained": "write --backbone NAME/TAG",
    "--dataset": "data sets follow the command without an option",
    "--dataset-root": "write --data ROOT",
    "--image": "images follow the command without an option",
    "--candidate-labels": "write --classes NAME …",
    "--labels": "write --classes NAME …",
    "--class-names": "write --classes NAME …",
    "--batch-size": "leave it out: it changes no number",
    "--num-workers": "write --threads N, or --workers N for processes",
    "--lambda": "write --set lambda=…",
    "--lr": "write --set learning-rate=…",
    "--amp": "write --precision bf16 or --precision fp16",
}
"""Commands and options of other tools, and what to write instead."""

HELP = ("--help", "-h", "--help-all")


def all_commands() -> dict[str, dict[str, tuple[str, str]]]:
    """Return group → command → ("module:function", help), including plugins."""
    found = {
        group: {name: (f"otpt.cli.{module}:{name.split()[-1]}", text) for name, (module, text) in own.items()}
        for group, own in COMMANDS.items()
    }
    for plugin in import_plugins("commands"):
        for group, own in plugin.COMMANDS.items():
            found.setdefault(group, {}).update(own)
    return found


def run(words: Sequence[str]) -> int:
    """Run a command; a user's mistake gets one line on standard error and exit code 2."""
    terminal.words[:] = words
    try:
        commands = {name: target for own in all_commands().values() for name, (target, _) in own.items()}
        name, rest = _find(words, commands)
        if not name:
            print_commands(words[0] if words and not words[0].startswith("-") else "")
            return 0
        if any(word in HELP for word in rest[: rest.index("--") if "--" in rest else None]):
            from otpt.cli.app import print_help

            print_help(name, commands[name], complete="--help-all" in rest)
            return 0
        from otpt.cli.app import run_command

        return run_command(name, commands[name], rest)
    except OtptError as error:
        terminal.say(str(error))
    return 2


def _find(words: Sequence[str], commands: dict[str, str]) -> tuple[str, list[str]]:
    """Return the name of the command and the words after it; an empty name for the list of commands."""
    if not words or words[0] in HELP:
        return "", []
    below = [name for name in commands if name.startswith(f"{words[0]} ")]
    is_below = len(words) > 1 and not words[1].startswith("-")
    name = " ".join(words[: 1 + bool(below and is_below)])
    if name in commands:
        return name, list(words[name.count(" ") + 1 :])
    if below and not is_below:
        return "", []
    given = (words[1] if below else words[0]).lower()
    names = list(dict.fromkeys(name.split()[bool(below)] for name in below or commands))
    near = difflib.get_close_matches(given, [*names, *HELP], n=2) or [each for each in names if each.startswith(given)]
    hint = ELSEWHERE.get(given) or (f"did you mean {' or '.join(near)}" if near else "")
    raise OtptError(f"unknown command {given!r}{'; ' * bool(hint)}{hint}. The commands are {', '.join(names)}.")


def print_commands(below: str) -> None:
    """Print the list of commands, or of those below one."""
    print(f"Usage: otpt{' ' + below if below else ''} COMMAND …\n")
    if not below:
        print("Calibrated test-time adaptation of CLIP-like models.\n")
    for group, commands in all_commands().items():
        own = {name: summary for name, (_, summary) in commands.items() if name.startswith(below)}
        if own:
            print(f"{group}:")
            for name, summary in own.items():
                print_entry(name.removeprefix(f"{below} "), summary, 20)
            print()
    print("'otpt COMMAND --help' shows the options of a command, 'otpt --version' the version.")


def help_width() -> int:
    """Return the columns of help pages."""
    return max(60, min(shutil.get_terminal_size().columns, 120))


def print_entry(left: str, right: str, indent: int) -> None:
    """Print a name and its description in two columns."""
    lines = textwrap.wrap(right, help_width() - indent) or [""]
    head = f"  {left}"
    if len(head) + 2 > indent:
        print(head)
    else:
        print(f"{head:<{indent}}{lines.pop(0)}".rstrip())
    for line in lines:
        print(f"{'':<{indent}}{line}")
