"""The commands by group, their list, and running one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from otpt.cli import terminal
from otpt.cli.pages import print_page, stored_page
from otpt.cli.terminal import print_entry, say
from otpt.errors import OtptError
from otpt.plugins import plugin_commands

Commands = Mapping[str, Mapping[str, tuple[str, str]]]
"""Group → command → ("module:function", help)."""

COMMANDS: Commands = {
    "Classify images": {
        "predict": ("otpt.cli.predict:predict", "classify images"),
        "embed": ("otpt.cli.predict:embed", "image features in a Parquet file"),
        "serve": ("otpt.cli.serve:serve", "predictions over HTTP, with a web page"),
        "calibrate": ("otpt.cli.calibrate:calibrate", "fit a calibration on labelled images"),
        "decide": ("otpt.cli.decide:decide", "confidence thresholds for accepted error rates"),
        "export": ("otpt.cli.export:export", "a classifier as an ONNX file"),
    },
    "Evaluate methods": {
        "demo": ("otpt.cli.demo:demo", "four methods on the embedded model and bench, no download"),
        "evaluate": ("otpt.cli.evaluate:evaluate", "accuracy and calibration of methods on data sets"),
        "sweep": ("otpt.cli.evaluate:sweep", "methods under many settings or prompts"),
        "train coop": ("otpt.cli.train:coop", "learn the context's vectors (CoOp)"),
        "train maple": ("otpt.cli.train:maple", "learn prompts in both towers (MaPLe)"),
        "plan": ("otpt.cli.plan:plan", "predict time and memory without running anything"),
    },
    "Read results": {
        "metrics": ("otpt.cli.results:metrics", "metrics of a run, from its rows"),
        "compare": ("otpt.cli.results:compare", "paired tests of two methods on the same images"),
        "table": ("otpt.cli.results:table", "tables of runs, with published numbers"),
        "plot": ("otpt.cli.plot:plot", "figures of runs"),
        "report": ("otpt.cli.results:report", "one HTML page of runs"),
    },
    "Look things up": {
        "datasets": ("otpt.cli.datasets:datasets", "data sets, where they come from, and which are present"),
        "datasets check": ("otpt.cli.datasets:check", "verify a data set and open a sample of its images"),
        "datasets get": ("otpt.cli.datasets:get", "download, verify, unpack and check data sets"),
        "datasets prepare": ("otpt.cli.datasets:prepare", "sort ImageNet's images; draw UCF101's middle frames"),
        "methods": ("otpt.cli.lists:methods", "the parts of method names"),
        "models": ("otpt.cli.lists:models", "backbones"),
        "cache": ("otpt.cli.lists:cache", "show or empty the feature cache"),
        "doctor": ("otpt.cli.lists:doctor", "versions, hardware, missing packages"),
        "completion": ("otpt.cli.lists:completion", "completion script for a shell"),
    },
}
"""Built-in commands; a module is imported when one of its commands runs."""

ELSEWHERE = {
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
    """Return group → command → ("module:function", help), including those of plugins."""
    commands = {group: dict(members) for group, members in COMMANDS.items()}
    for group, members in plugin_commands().items():
        commands.setdefault(group, {}).update(members)
    return commands


def run(words: Sequence[str]) -> int:
    """Run a command; a user's mistake gets one line on standard error and exit code 2."""
    terminal.words[:] = words
    try:
        commands = {name: entry for members in all_commands().values() for name, entry in members.items()}
        name, options = _find(words, commands)
        if not name:
            print_commands(words[0] if words and not words[0].startswith("-") else "")
            return 0
        before_dashes = options[: options.index("--") if "--" in options else None]
        if any(word in HELP for word in before_dashes):
            _print_help(name, commands, complete="--help-all" in options)
            return 0
        from otpt.cli import app  # with cyclopts, which takes a tenth of a second

        app.commands.update(commands)
        try:
            return app.run_command(name, commands[name][0], options)
        except OtptError as error:
            say(app.with_options(str(error)))
    except OtptError as error:
        say(str(error))
    return 2


def _print_help(name: str, commands: Mapping[str, tuple[str, str]], *, complete: bool) -> None:
    page = stored_page(name)
    if page is None:  # of a plugin
        from otpt.cli.app import describe_command

        page = describe_command(name, commands[name][0])
    print_page(page, complete=complete)


def _find(words: Sequence[str], commands: Mapping[str, tuple[str, str]]) -> tuple[str, list[str]]:
    """Return the name of the command and the words after it; an empty name for the list of commands."""
    if not words or words[0] in HELP:
        return "", []
    below = [name for name in commands if name.startswith(f"{words[0]} ")]
    names_second = len(words) > 1 and not words[1].startswith("-")
    name = " ".join(words[: 2 if below and names_second else 1])
    if name in commands:
        return name, list(words[name.count(" ") + 1 :])
    if below and not names_second:
        return "", []
    wrong = words[1 if below else 0].lower()
    names = list(dict.fromkeys(name.split()[1 if below else 0] for name in below or commands))
    near = difflib.get_close_matches(wrong, [*names, *HELP], n=2) or [name for name in names if name.startswith(wrong)]
    hint = ELSEWHERE.get(wrong) or (f"did you mean {' or '.join(near)}" if near else "")
    raise OtptError(f"unknown command {wrong!r}{'; ' * bool(hint)}{hint}. The commands are {', '.join(names)}.")


def print_commands(below: str) -> None:
    """Print the list of commands, or of those below one."""
    print(f"Usage: otpt{' ' + below if below else ''} COMMAND …\n")
    if not below:
        print("Calibrated test-time adaptation of CLIP-like models.\n")
    for group, commands in all_commands().items():
        members = {name: text for name, (_, text) in commands.items() if name.startswith(below)}
        if members:
            print(f"{group}:")
            for name, text in members.items():
                print_entry(name.removeprefix(f"{below} "), text, 20)
            print()
    print("'otpt COMMAND --help' shows the options of a command, 'otpt --version' the version.")
