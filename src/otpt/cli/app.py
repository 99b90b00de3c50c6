"""Options of a command: parsing, and what is said of a wrong one."""

from __future__ import annotations

import difflib
import os
import shlex
import warnings
from collections.abc import Iterable
from importlib import import_module
from itertools import chain
from typing import Any, cast

from cyclopts import App, CycloptsError, Parameter, _convert
from cyclopts.argument import Argument
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from otpt.cli.commands import HELP, all_commands
from otpt.cli.terminal import note
from otpt.errors import OtptError

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

STANDARD_INPUT = "<stdin>"
"""What the word ``-`` becomes."""

_PARAMETER = Parameter(consume_multiple=1, negative=())  # several words per option, "--no-…" only where it is declared
_convert._converters[int] = int  # cyclopts rounds "1.5"


def run_command(name: str, target: str, words: list[str]) -> int:
    """Call the function of a command with its arguments; ``OtptError`` for a mistake of the user."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        app, words = _with_config(make_app(f"otpt {name}", target), words)
        words = [STANDARD_INPUT if word == "-" else word for word in words]  # else cyclopts reads "-" as an option
        try:
            command, arguments, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise OtptError(_sentence(error, name)) from None
        return command(*arguments.args, **arguments.kwargs) or 0


def make_app(name: str, target: str, help: str = "") -> App:
    """The application of one command; only its module is imported."""
    module, _, function = target.partition(":")
    app = App(
        name=name,
        help=help,
        default_parameter=_PARAMETER,
        help_flags=(),
        version_flags=(),
        suppress_keyboard_interrupt=False,
        error_console=cast(Any, object()),  # errors are printed here, not by rich, whose import takes long
    )
    app.default(getattr(import_module(module), function))
    return app


def _with_config(app: App, words: list[str]) -> tuple[App, list[str]]:
    """The application with the file of ``--config``, and the other words."""
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if at is None:
        return app, words
    from cyclopts.config import Toml

    _, equals, file = words[at].partition("=")
    rest = words[at + 1 :]
    file = file if equals else "".join(rest[:1])
    if not os.path.isfile(file):
        raise OtptError(f"--config was given {file!r}; expected a TOML file.")
    keys = app.name[0].split()[1:]
    app.config = (Toml(file, must_exist=True, root_keys=keys, use_commands_as_keys=False),)
    return app, words[:at] + (rest if equals else rest[1:])


def _suggestion(given: str, known: Iterable[Argument]) -> str:
    """What to write instead of an unknown option: that of another tool in our words, or the nearest name."""
    written = given.partition("=")[0].replace("_", "-")
    if hint := OPTIONS_ELSEWHERE.get(written):
        return f"; {hint}."
    names = {name.lstrip("-"): name for each in known if each.parse for name in each.names}
    names |= {name.lstrip("-"): name for name in (*HELP, "--config")}
    near = difflib.get_close_matches(written.lstrip("-"), names, n=1)  # dashes would make all names similar
    return f"; did you mean {names[near[0]]}?" if near else "."


def _sentence(error: CycloptsError, name: str) -> str:
    """What was wrong with an option, in one line."""
    if isinstance(error, UnknownOptionError):
        given = str(error.token.keyword or error.token.value)
        text = f"unknown option {given}{_suggestion(given, error.argument_collection)}"
        if error.token.source != "cli":
            text = f"{error.token.source}: {text}"
    elif isinstance(error, UnusedCliTokensError):
        words = error.unused_tokens or [""]
        near = difflib.get_close_matches(f"{name} {words[0]}", chain(*all_commands().values()), n=1)
        hint = f"; did you mean {near[0]}?" if near and near[0].startswith(f"{name} ") else "."
        text = f"unexpected argument {shlex.join(words)}{hint}"
    elif isinstance(error, MissingArgumentError) and error.argument and not (error.keyword or error.argument.tokens):
        name_of = error.argument.name
        text = f"{name_of if name_of.startswith('-') else error.argument.parameter.metavar or name_of} is missing."
    else:
        text = str(error)
    text = " ".join(text.split()).replace(f'Command "otpt {name}" parameter ', "")
    return f"{text} See 'otpt {name} --help'."
