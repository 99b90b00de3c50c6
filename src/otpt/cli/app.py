"""One command: its options, its help page, and messages about wrong options."""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
import warnings
from importlib import import_module
from typing import Any, cast

from cyclopts import App, CycloptsError, Parameter, _convert
from cyclopts.argument import Argument
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError, ValidationError

from otpt.cli.commands import ELSEWHERE, HELP, help_width, print_entry
from otpt.cli.terminal import note
from otpt.errors import OtptError

SHOWN = ("Arguments", "Options", "Method", "Data", "Model", "Run", "Training")
"""Groups of options that ``--help`` shows; ``--help-all`` also shows the others."""
_PARAMETER = Parameter(consume_multiple=1, negative=())  # several words per option, "--no-…" only where it is declared
_convert._converters[int] = int  # cyclopts rounds "1.5"


def run_command(name: str, target: str, words: list[str]) -> int:
    """Call the function of a command with its arguments; ``OtptError`` for a wrong option."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        app, words = _with_config(make_app(f"otpt {name}", target), words)
        words = ["<stdin>" if word == "-" else word for word in words]  # cyclopts takes "-" for an option
        try:
            command, arguments, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise OtptError(_sentence(error, name)) from None
        return command(*arguments.args, **arguments.kwargs) or 0


def make_app(name: str, target: str, help: str = "") -> App:
    """Return the application of one command; only its module is imported."""
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
    """Return the application with the file of ``--config``, and the other words."""
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


def _sentence(error: CycloptsError, name: str) -> str:
    """Describe a wrong option in one line."""
    text = str(error)
    if isinstance(error, UnknownOptionError):
        given = str(error.token.keyword or error.token.value).partition("=")[0].replace("_", "-")
        if difflib.get_close_matches(given, HELP, cutoff=0.8):
            text = f"Unknown option: {given}. Did you mean --help?"
        elif given in ELSEWHERE:
            text = f"Unknown option: {given}; {ELSEWHERE[given]}."
    elif isinstance(error, MissingArgumentError) and error.argument and not error.argument.tokens:
        text = f"{error.argument.name} is required."
    elif isinstance(error, UnusedCliTokensError):
        text = f"Unexpected argument: {' '.join(error.unused_tokens or ())}."
    elif isinstance(error, ValidationError) and error.argument:
        given = " ".join(token.value for token in error.argument.tokens)
        text = f"Invalid value {given!r} for {error.argument.name}. {error.exception_message}"
    text = " ".join(text.split()).replace(f'Command "otpt {name}" parameter ', "")
    return f"{text} See 'otpt {name} --help'."


def print_help(name: str, target: str, *, complete: bool) -> None:
    """Print the usage, examples and options of a command."""
    width = help_width()
    app = make_app(f"otpt {name}", target)
    arguments = [each for each in app.assemble_argument_collection() if each.parse and each.show]
    places = [each for each in arguments if not each.name.startswith("-")]
    usage = " ".join(f"[{_metavar(each)} …]" if _is_several(each) else _metavar(each) for each in places)
    print(f"Usage: otpt {name} {usage}{' ' * bool(usage)}[OPTIONS]\n")
    text, _, examples = inspect.cleandoc(app.default_command.__doc__ or "").partition("\n\n")
    print(f"{textwrap.fill(' '.join(text.split()), width)}\n")
    if examples:
        print(f"Examples:\n{textwrap.indent(examples, '  ')}\n")
    groups: dict[str, list[Argument]] = {}
    for each in arguments:
        groups.setdefault("Arguments" if each in places else _group(each), []).append(each)
    for group in SHOWN if not complete else [*SHOWN, *(each for each in groups if each not in SHOWN)]:
        if group in groups:
            print(f"{group}:")
            for each in groups[group]:
                print_entry(_spelling(each), _help(each), 26)
            print()
    hidden = [group.lower() for group in groups if group not in SHOWN]
    if hidden and not complete:
        print(textwrap.fill(f"More with --help-all: {', '.join(hidden)}.", width))


def _group(argument: Argument) -> str:
    groups: Any = argument.parameter.group or ()
    name = next((getattr(each, "name", str(each)) for each in groups), "")
    return name if name and name != "Parameters" else "Options"


def _spelling(argument: Argument) -> str:
    if not argument.name.startswith("-"):
        return _metavar(argument)
    value = "" if argument.token_count()[0] == 0 or "bool" in str(argument.hint) else f" {_metavar(argument)}"
    return f"{', '.join(argument.names)}{value}{' …' if value and _is_several(argument) else ''}"


def _metavar(argument: Argument) -> str:
    if argument.parameter.metavar:
        return str(argument.parameter.metavar)
    if choices := argument.get_choices():
        return "|".join(choices)
    kinds = {"int": "N", "float": "X", "Path": "PATH"}
    hint = str(argument.hint)
    return next((short for kind, short in kinds.items() if kind in hint), argument.name.lstrip("-").upper())


def _is_several(argument: Argument) -> bool:
    return bool(argument.token_count()[1]) and argument.parameter.consume_multiple != (0, 1)


def _help(argument: Argument) -> str:
    text, default = argument.parameter.help or "", argument.field_info.default
    if isinstance(default, (int, float, str, tuple)) and not isinstance(default, bool) and default not in ("", ()):
        words = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default: {words})" if "default" not in text else ""
    return text
