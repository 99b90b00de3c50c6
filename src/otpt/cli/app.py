"""Commands by group, how one is found and run, and what is said of a wrong one."""

from __future__ import annotations

import difflib
import os
import shlex
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import BoundArguments
from typing import Any, cast

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from otpt.cli import BAD_INPUT
from otpt.errors import OtptError
from otpt.plugins import import_plugins

COMMANDS: dict[str, dict[str, str]] = {
    "Classify images": {
        "predict": "classify images",
        "serve": "predictions over HTTP, with a web page",
        "calibrate": "fit a calibration on labelled images",
    },
    "Evaluate methods": {
        "demo": "four methods on the embedded model and bench, no download",
        "evaluate": "accuracy and calibration of methods on data sets",
        "sweep": "methods under many settings or prompts",
        "train coop": "learn the context's vectors (CoOp)",
        "train maple": "learn prompts in both towers (MaPLe)",
        "plan": "predict time and memory without running anything",
        "reproduce": "plan or run a paper's tables",
    },
    "Read results": {
        "metrics": "metrics of a run, from its rows",
        "compare": "paired tests of two methods on the same images",
        "table": "tables of runs in the paper's layouts",
        "plot": "figures of runs",
        "report": "one HTML page of runs",
    },
    "Look things up": {
        "datasets": "data sets, and which of them are found",
        "datasets check": "verify a data set and open a sample of its images",
        "datasets get": "download a data set",
        "methods": "the parts of method names",
        "models": "backbones",
        "cache": "show or empty the feature cache",
        "doctor": "versions, hardware, and what is missing",
        "completion": "completion script for a shell",
    },
}
"""Group → command → help. The command "train coop" is the function `coop` of the module `otpt.cli.train`."""

OPTIONS_ELSEWHERE = {
    "--model": "write --backbone NAME/TAG",
    "--pretrained": "write --backbone NAME/TAG",
    "--dataset": "data sets follow the command without an option",
    "--dataset-root": "write --data ROOT",
    "--image": "images follow the command without an option",
    "--images": "images follow the command without an option",
    "--candidate-labels": "write --classes NAME …",
    "--labels": "write --classes NAME …",
    "--class-names": "write --classes NAME …",
    "--output": "write --out",
    "--batch-size": "leave it out: it changes no number",
    "--num-workers": "write --threads N, or --workers N for processes",
    "--lambda": "write --set lambda=…",
    "--lr": "write --set learning-rate=…",
    "--n-bins": "write --bins N",
    "--amp": "write --precision bf16 or --precision fp16",
    "--topk": "write --top K",
    "--top-k": "write --top K",
}
"""Options of other tools, and what to write instead."""

COMMANDS_ELSEWHERE = {
    "help": "write otpt --help",
    "version": "write otpt --version",
    "list": "write otpt methods, otpt models or otpt datasets",
    "classify": "write otpt predict",
    "benchmark": "write otpt evaluate",
}
"""Commands of other tools, and what to write instead."""

DEFAULT_PARAMETER = Parameter(consume_multiple=1, negative=())
"""Options of several words take all words up to the next option; only some flags have a negative form."""

STANDARD_INPUT = "<stdin>"
"""What the word ``-`` becomes."""

_HELP = ("--help", "-h", "--help-all")
_words: list[str] = []


def command_line() -> list[str]:
    """The words of the command that is run, "otpt" first."""
    return ["otpt", *_words]


def all_commands() -> dict[str, dict[str, tuple[str, str]]]:
    """Group → command → ("module:function", help), those of plugins included."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for group, own in COMMANDS.items():
        found[group] = {
            name: (f"otpt.cli.{name.split()[0]}:{name.split()[-1]}", summary) for name, summary in own.items()
        }
    for plugin in import_plugins("commands"):
        for group, own in plugin.COMMANDS.items():
            found.setdefault(group, {}).update(own)
    return found


def run(words: Sequence[str]) -> int:
    """Run a command; one line on standard error and exit code 2 for a mistake of the user."""
    from otpt.cli.terminal import note, say

    _words[:] = words
    try:
        commands = {name: target for own in all_commands().values() for name, (target, _) in own.items()}
        name, rest = _find_command(words, commands)
        if name is None or any(word in _HELP for word in _before_dashes(rest)):
            from otpt.cli.help import print_help

            print_help(name, words, complete="--help-all" in words)
            return 0
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: note(str(message))
            command, arguments = _parse(name, commands[name], rest)
            return command(*arguments.args, **arguments.kwargs) or 0
    except OtptError as error:
        say(str(error))
    except CycloptsError as error:
        say(_sentence(error, name))
    return BAD_INPUT


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The arguments that the function of a command is called with."""
    commands = {name: target for own in all_commands().values() for name, (target, _) in own.items()}
    name, rest = _find_command(words, commands)
    if name is None:
        raise OtptError("No command was given.")
    return dict(_parse(name, commands[name], rest)[1].arguments)


def _parse(name: str, target: str, words: list[str]) -> tuple[Callable[..., int], BoundArguments]:
    config, words = _take_config(words)
    words = [STANDARD_INPUT if word == "-" else word for word in words]  # else cyclopts reads "-" as an option
    app = make_app(name, target)
    if config is not None:
        from cyclopts.config import Toml

        if not os.path.isfile(config):
            raise OtptError(f"There is no configuration file {config!r}; check the path.")
        app.config = (Toml(config, must_exist=True, root_keys=name.split(), use_commands_as_keys=False),)
    command, arguments, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    return command, arguments


def make_app(name: str, target: str) -> App:
    """The application of one command; only its module is imported."""
    module, _, function = target.partition(":")
    app = App(
        name=f"otpt {name}",
        default_parameter=DEFAULT_PARAMETER,
        help_flags=(),
        version_flags=(),
        suppress_keyboard_interrupt=False,
        error_console=cast(Any, object()),  # errors are printed here, not by rich, whose import takes long
    )
    app.default(getattr(import_module(module), function))
    return app


def _take_config(words: list[str]) -> tuple[str | None, list[str]]:
    """The file of ``--config FILE``, and the other words."""
    for at, word in enumerate(words):
        option, equals, file = word.partition("=")
        if option == "--config":
            if not equals and at + 1 == len(words):
                raise OtptError("--config was given without a file; expected a TOML file.")
            found = file if equals else words[at + 1]
            return found, words[:at] + words[at + (1 if equals else 2) :]
    return None, words


def _find_command(words: Sequence[str], commands: dict[str, str]) -> tuple[str | None, list[str]]:
    """The name of the command and the words after it; None if only help is asked for."""
    if not words or words[0] in _HELP:
        return None, []
    for length in (2, 1):
        if (name := " ".join(words[:length])) in commands and len(words) >= length:
            return name, list(words[length:])
    below = [name for name in commands if name.startswith(f"{words[0]} ")]
    if below and (len(words) == 1 or words[1] in _HELP):
        return None, []
    names = [name.split()[1] for name in below] if below else list(dict.fromkeys(name.split()[0] for name in commands))
    raise _unknown_command(words[1] if below else words[0], names)


def _unknown_command(given: str, names: Sequence[str]) -> OtptError:
    near = difflib.get_close_matches(given.lower(), names, n=2, cutoff=0.6)
    near = near or [name for name in names if len(given) > 2 and name.startswith(given.lower())]
    hint = COMMANDS_ELSEWHERE.get(given.lower()) or (f"did you mean {' or '.join(near)}?" if near else "")
    said = f"unknown command {given!r}" + (f"; {hint}" if hint else "")
    return OtptError(f"{said}{'' if said.endswith('?') else '.'} The commands are {', '.join(names)}.")


def _before_dashes(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _sentence(error: CycloptsError, name: str | None) -> str:
    """What was wrong with an option, in one line."""
    if isinstance(error, UnknownOptionError):
        given = str(error.token.keyword or error.token.value)
        option = given.partition("=")[0].replace("_", "-")
        hint = OPTIONS_ELSEWHERE.get(option)
        text = f"unknown option {given}; {hint}." if hint else str(error)
    elif isinstance(error, UnusedCliTokensError):
        text = f"unexpected argument {shlex.join(error.unused_tokens or ())}."
    elif isinstance(error, MissingArgumentError) and not (error.keyword or error.argument.tokens):
        name_of = error.argument.name
        text = f"{name_of if name_of.startswith('-') else error.argument.parameter.metavar or name_of} is missing."
    else:
        text = str(error)
    text = " ".join(text.split()).replace(f'Command "otpt {name}" parameter ', "")
    return f"{text} See 'otpt {name} --help'."
