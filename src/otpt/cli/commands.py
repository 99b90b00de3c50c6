"""The commands by group, how one is found and run, and what is said of an unknown one."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Sequence

from otpt.cli import BAD_INPUT
from otpt.cli.terminal import say, set_command_line
from otpt.errors import OtptError
from otpt.plugins import import_plugins

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Classify images": {
        "predict": ("predict", "classify images"),
        "embed": ("embed", "image features in a Parquet file"),
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
        "metrics": ("metrics", "metrics of a run, from its rows"),
        "compare": ("results", "paired tests of two methods on the same images"),
        "table": ("results", "tables of runs in the paper's layouts"),
        "plot": ("plot", "figures of runs"),
        "report": ("results", "one HTML page of runs"),
    },
    "Look things up": {
        "datasets": ("datasets", "data sets, and which of them are found"),
        "datasets check": ("datasets", "verify a data set and open a sample of its images"),
        "datasets get": ("datasets", "download a data set"),
        "methods": ("lists", "the parts of method names"),
        "models": ("lists", "backbones"),
        "cache": ("lists", "show or empty the feature cache"),
        "doctor": ("doctor", "versions, hardware, and what is missing"),
        "completion": ("lists", "completion script for a shell"),
    },
}
"""Group → command → (module, help). The last word of the command is the function."""

COMMANDS_ELSEWHERE = {
    "help": "write otpt --help",
    "version": "write otpt --version",
    "list": "write otpt methods, otpt models or otpt datasets",
    "classify": "write otpt predict",
    "encode": "write otpt embed",
    "features": "write otpt embed",
    "benchmark": "write otpt evaluate",
}
"""Commands of other tools, and what to write instead."""

HELP = ("--help", "-h", "--help-all")


def all_commands() -> dict[str, dict[str, tuple[str, str]]]:
    """Group → command → ("module:function", help), those of plugins included."""
    found = {
        group: {name: (f"otpt.cli.{module}:{name.split()[-1]}", text) for name, (module, text) in own.items()}
        for group, own in COMMANDS.items()
    }
    for plugin in import_plugins("commands"):
        for group, own in plugin.COMMANDS.items():
            found.setdefault(group, {}).update(own)
    return found


def run(words: Sequence[str]) -> int:
    """Run a command; one line on standard error and exit code 2 for a mistake of the user."""
    set_command_line(words)
    try:
        commands = {name: target for own in all_commands().values() for name, (target, _) in own.items()}
        name, rest = _find(words, commands)
        if not name:
            print_commands(words[0] if words and not words[0].startswith("-") else "")
            return 0
        if any(word in HELP for word in rest[: rest.index("--") if "--" in rest else None]):
            from otpt.cli.help import print_help

            print_help(name, commands[name], complete="--help-all" in rest)
            return 0
        from otpt.cli.app import run_command

        return run_command(name, commands[name], rest)
    except OtptError as error:
        say(str(error))
    return BAD_INPUT


def _find(words: Sequence[str], commands: dict[str, str]) -> tuple[str, list[str]]:
    """The name of the command and the words after it; an empty name for the list of commands."""
    if not words or words[0] in HELP:
        return "", []
    for length in (2, 1):
        if (name := " ".join(words[:length])) in commands:
            return name, list(words[length:])
    below = [name for name in commands if name.startswith(f"{words[0]} ")]
    if below and (len(words) == 1 or words[1] in HELP):
        return "", []
    given = (words[1] if below else words[0]).lower()
    names = list(dict.fromkeys(name.split()[bool(below)] for name in below or commands))
    near = difflib.get_close_matches(given, [*names, *HELP], n=2) or [each for each in names if each.startswith(given)]
    hint = COMMANDS_ELSEWHERE.get(given) or (f"did you mean {' or '.join(near)}" if near else "")
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
    """Columns of help pages."""
    return max(60, min(shutil.get_terminal_size().columns, 120))


def print_entry(left: str, right: str, indent: int) -> None:
    """Print a name and what it is, in two columns."""
    lines = textwrap.wrap(right, help_width() - indent) or [""]
    head = f"  {left}"
    if len(head) + 2 > indent:
        print(head)
    else:
        print(f"{head:<{indent}}{lines.pop(0)}".rstrip())
    for line in lines:
        print(f"{'':<{indent}}{line}")
