"""The parser of the command line. Only the module of the command that is run is imported."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from typing import Any

from otpt._version import __version__

BAD_INPUT = 2
"""The exit code for input that cannot be used."""

GROUPS = {
    "predicting": {
        "predict": "classify images",
        "serve": "predictions over HTTP, and a page to play with",
        "calibrate": "a calibration file from labelled images",
    },
    "evaluating": {
        "demo": "four methods on the embedded model and bench, no download",
        "evaluate": "accuracy and calibration of methods on data sets",
        "sweep": "one method under many settings or prompts",
        "train": "learn a prompt from a few labelled images",
        "certify": "certified radii of PromptSmooth",
        "plan": "predict hours and memory of methods on data sets; nothing is run",
        "reproduce": "plan or run the paper's tables",
    },
    "results": {
        "metrics": "metrics of a run, from its rows",
        "compare": "two methods on the same images: is one better?",
        "table": "runs as tables in the paper's layouts",
        "plot": "figures from runs",
        "report": "one HTML page from runs",
    },
    "information": {
        "datasets": "list, check and download data sets",
        "methods": "list the parts of method names",
        "models": "list the backbones",
        "cache": "the feature cache",
        "doctor": "what is installed, what this machine has, what is missing for what",
        "completion": "completion of commands and options in your shell",
    },
}
"""Commands by folder of this package: modules with ``add_options(parser)``, which also says what runs them."""

COMMANDS = {name: group for group, commands in GROUPS.items() for name in commands}
"""Command → its group."""

_TITLES = {
    "predicting": "classify images",
    "evaluating": "evaluate methods",
    "results": "read results",
    "information": "look things up",
}
"""Headings of the groups in ``otpt --help``."""


class _Help(argparse.HelpFormatter):
    """Two spellings of an option share one mention of its value: ``--methods, --method NAME [NAME …]``."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.nargs == argparse.PARSER:  # argparse forgets that commands are indented
            self._action_max_length += self._indent_increment

    def _format_action(self, action: argparse.Action) -> str:
        """A line or more; before the first command of a group also its heading."""
        words = super()._format_action(action)
        group = COMMANDS.get(str(action.metavar), "")
        if not group or action.metavar != next(iter(GROUPS[group])):
            return words
        return f"\n{' ' * self._indent_increment}{_TITLES[group]}:\n{words}"


class _Store(argparse._StoreAction):
    """Values of an option of several words add up when it is repeated, as in ``--set lambda=6 --set steps=2``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        before: Any = getattr(namespace, self.dest, None)
        if self.option_strings and self.nargs == argparse.ONE_OR_MORE and before is not self.default:
            values = [*before, *values]
        super().__call__(parser, namespace, values, option_string)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and where to read on, instead of printing the whole usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **options})
        self.register("action", None, _Store)

    def error(self, message: str) -> Any:
        stop = "" if message.endswith("?") else "."
        self.exit(BAD_INPUT, f"{self.prog}: {message}{stop} See '{self.prog} --help'.\n")


def make_parser(commands: Collection[str]) -> argparse.ArgumentParser:
    """The parser with the options of these commands; of the others only their names."""
    parser = _Parser(prog="otpt", description="Calibrated test-time adaptation of CLIP-like models.")
    parser.add_argument("--version", action="version", version=f"otpt {__version__}")
    below = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name, group in COMMANDS.items():
        command = below.add_parser(name, help=GROUPS[group][name])
        if name in commands:
            import_module(f"otpt.cli.{group}.{name}").add_options(command)
    return parser


class Word(str):
    """A word of the command line that knows where it is: ``command_line`` split again has it at ``place``."""

    place = 0


def _words(arguments: Sequence[str]) -> Iterator[Word]:
    for place, each in enumerate(arguments, start=1):  # after "otpt"
        word = Word(each)
        word.place = place
        yield word


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, and as ``run`` the function that takes them."""
    chosen = next((each for each in arguments if not each.startswith("-")), "")
    parser = make_parser([chosen])
    if chosen and chosen not in COMMANDS:
        from otpt.cli.not_known import command_hint

        parser.error(command_hint(chosen, COMMANDS))
    options, left = parser.parse_known_args(list(_words(arguments)))
    if left:
        from otpt.cli.not_known import words_hint

        parser.error(words_hint(left, parser, arguments))
    options.command_line = shlex.join(["otpt", *arguments])
    return options
