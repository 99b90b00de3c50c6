"""One command: its options, its help page, and messages about wrong options."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import get_args

from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)
from cyclopts.config import Toml

from otpt.cli.environment import install_hint
from otpt.cli.outputs import with_overwrite
from otpt.cli.pages import Page, commands_with
from otpt.cli.terminal import note
from otpt.errors import OtptError
from otpt.plugins import load_installed_plugins
from otpt.records import NO_OPTION, mark_of
from otpt.registry import INITS, SYSTEMS

commands: dict[str, tuple[str, str]] = {}
"""All commands: name → ("module:function", help). The table in :mod:`otpt.cli.commands` fills it."""

ELSEWHERE = {
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
    "--fpp": "write --set fpp-steps=… and so on",
}
"""Options of other tools, and what to write instead."""

_OPTIONS = {
    "quick_gelu=True or False": "--quick-gelu or --no-quick-gelu",
    "quick_gelu=True": "--quick-gelu",
    "quick_gelu=False": "--no-quick-gelu",
    "architecture=…": "--architecture NAME",
    "architecture=": "--architecture ",
}
"""Keywords of the library in messages about models, and the options in their place."""
_HELP = ("--help", "-h", "--help-all")
_PARAMETER = Parameter(consume_multiple=1, negative=())  # several words per option, "--no-…" only where it is declared
_METAVARS = {"int": "N", "float": "X", "Path": "PATH"}


def run_command(name: str, target: str, words: list[str]) -> int:
    """Call the function of a command with its arguments; ``OtptError`` for a wrong option."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(with_options(str(message)))
        app = make_app(f"otpt {name}", target)
        words, file = _split_config(words)
        if file is not None:
            app.config = (Toml(file, must_exist=True, root_keys=name.split(), use_commands_as_keys=False), *app.config)
        words = ["<stdin>" if word == "-" else word for word in words]  # cyclopts takes "-" for an option
        try:
            command, arguments, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise OtptError(_sentence(error, name, words)) from None
        return command(*arguments.args, **arguments.kwargs) or 0


def with_options(message: str) -> str:
    """Replace keywords of Python in a message by the options of the command line.

    >>> with_options("Pass quick_gelu=True or False to choose.")
    'Pass --quick-gelu or --no-quick-gelu to choose.'
    """
    for keyword, option in _OPTIONS.items():
        message = message.replace(keyword, option)
    return message


def make_app(name: str, target: str, help: str = "") -> App:
    """Return the application of one command; only its module is imported."""
    app = App(
        name=name,
        help=help,
        default_parameter=_PARAMETER,
        help_flags=(),
        version_flags=(),
        suppress_keyboard_interrupt=False,
        config=_refuse_fractions,
    )
    app.default(with_overwrite(_function(name, target)))
    return app


def _function(name: str, target: str) -> Callable[..., int | None]:
    """Import the function of a command."""
    module, _, attribute = target.partition(":")
    try:
        function: Callable[..., int | None] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == module.partition(".")[0]:
            raise
        raise OtptError(f"{name} needs {missing}; install it with: {install_hint(missing)}") from None
    return function


def _refuse_fractions(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raise for "1.5" where a whole number is expected, which cyclopts would round."""
    for argument in arguments:
        if _contains(argument.hint, int):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(argument=argument, token=token, target_type=int)


def _contains(hint: object, kind: type) -> bool:
    """Return whether a type is the given one, or a union or tuple of it."""
    return hint is kind or any(_contains(member, kind) for member in get_args(hint))


def _split_config(words: list[str]) -> tuple[list[str], str | None]:
    """Return the words without ``--config FILE``, and the file."""
    position = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if position is None:
        return words, None
    _, equals, file = words[position].partition("=")
    after = words[position + 1 :]
    if not equals:
        file = "".join(after[:1])
        after = after[1:]
    if not os.path.isfile(file):
        raise OtptError(f"--config was given {file!r}; expected a TOML file.")
    return [*words[:position], *after], file


def _sentence(error: CycloptsError, name: str, words: list[str]) -> str:
    """Describe a wrong option of a command, called with these words, in one line."""
    text = str(error)
    if isinstance(error, UnknownOptionError):
        text = _unknown_option(str(error.token.keyword or error.token.value), name) or text
    elif isinstance(error, MissingArgumentError) and error.argument and not error.argument.tokens:
        unused = (word for word in error.unused_tokens or () if word.startswith("--"))
        strange = next((word for word in unused if name not in commands_with(word.partition("=")[0])), None)
        text = f"{error.argument.name} {'is required' if error.keyword is None else 'needs a value'}."
        text = text if strange is None else _unknown_option(strange, name) or text
    elif isinstance(error, UnusedCliTokensError):
        text = _unexpected(list(error.unused_tokens or ()), words)
    elif isinstance(error, ValidationError) and error.argument:
        value = " ".join(token.value for token in error.argument.tokens)
        text = f"Invalid value {value!r} for {error.argument.name}. {error.exception_message}"
    text = " ".join(text.split()).replace(f'Command "otpt {name}" parameter ', "")
    return f"{text} See 'otpt {name} --help'."


def _unexpected(unused: list[str], words: list[str]) -> str:
    """Describe words that no option takes; they may follow an option with one value."""
    before = words[: words.index(unused[0])] if unused and unused[0] in words else []
    option = next((word for word in reversed(before) if word.startswith("-")), None)
    if option is not None and before[-1] != option and "=" not in option:
        return f"{option} takes one value, {before[-1]!r}; {' '.join(unused)!r} is one too many."
    return f"Unexpected argument: {' '.join(unused)}."


def _unknown_option(word: str, command: str) -> str | None:
    """Return a sentence with what to write instead of an option, or None if nothing is known."""
    if word.startswith("["):  # [command][option] in a TOML file
        word = "--" + word.removesuffix("]").rpartition("[")[2]
    option = word.partition("=")[0].replace("_", "-")
    if difflib.get_close_matches(option, _HELP, cutoff=0.8):
        return f"Unknown option: {option}. Did you mean --help?"
    if option in ELSEWHERE:
        return f"Unknown option: {option}; {ELSEWHERE[option]}."
    if option.removeprefix("--") in _method_inputs():
        return f"Unknown option: {option}; write --set {option.removeprefix('--')}=…"
    reason = _why_no_option(option.removeprefix("--").replace("-", "_"), command)
    if reason is not None:
        return f"Unknown option: {option}; {reason}."
    others = [other for other in commands_with(option) if other != command]
    if others:
        listed = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
        return f"Unknown option: {option}; it belongs to {listed}."
    return None


def _why_no_option(field: str, command: str) -> str | None:
    """Return why a command has no option for a field of the records, or None for other names."""
    from otpt.cli.options import RECORDS  # commands import it, help pages need not

    fields = [record.model_fields[field] for record in RECORDS if field in record.model_fields]
    reason = mark_of(fields[0], NO_OPTION) if fields else None
    if isinstance(reason, dict):
        reason = reason.get(command)
    return None if reason is None else str(reason)


def _method_inputs() -> set[str]:
    """Return the names of the inputs of all inits and systems, which are settings of methods."""
    load_installed_plugins("methods")
    names: set[str] = set()
    for preparation in (*INITS.values(), *SYSTEMS.values()):
        names.update(name.replace("_", "-") for name in preparation.model_fields)
    return names


# ---- help pages -----------------------------------------------------------------------------------------------------


def describe_command(name: str, target: str) -> Page:
    """Return the help page of a command, from its function and options."""
    app = make_app(f"otpt {name}", target)
    arguments = [argument for argument in app.assemble_argument_collection() if argument.parse and argument.show]
    positional = [argument for argument in arguments if not argument.name.startswith("-")]
    usage = [f"[{_metavar(place)} …]" if _takes_several(place) else _metavar(place) for place in positional]
    text, _, examples = inspect.cleandoc(app.default_command.__doc__ or "").partition("\n\n")
    groups: dict[str, list[tuple[str, str]]] = {}
    for argument in arguments:
        title = "Arguments" if argument in positional else _group_title(argument)
        groups.setdefault(title, []).append((_spelling(argument), _help(argument)))
    return {
        "usage": " ".join(["otpt", name, *usage, "[OPTIONS]"]),
        "text": " ".join(text.split()),
        "examples": examples.splitlines(),
        "groups": groups,
    }


def _group_title(argument: Argument) -> str:
    groups = argument.parameter.group or ()
    titles = [group.name if isinstance(group, Group) else str(group) for group in _as_tuple(groups)]
    title = titles[0] if titles else ""
    return title if title and title != "Parameters" else "Options"


def _as_tuple(groups: str | Group | Iterable[str | Group]) -> tuple[str | Group, ...]:
    return (groups,) if isinstance(groups, (str, Group)) else tuple(groups)


def _spelling(argument: Argument) -> str:
    if not argument.name.startswith("-"):
        return _metavar(argument)
    is_flag = argument.token_count()[0] == 0 or "bool" in str(argument.hint)
    value = "" if is_flag else f" {_metavar(argument)}"
    dots = " …" if value and _takes_several(argument) else ""
    return f"{', '.join(argument.names)}{value}{dots}"


def _metavar(argument: Argument) -> str:
    if argument.parameter.metavar:
        return str(argument.parameter.metavar)
    choices = argument.get_choices()
    if choices:
        return "|".join(choices)
    hint = str(argument.hint)
    return next((short for kind, short in _METAVARS.items() if kind in hint), argument.name.lstrip("-").upper())


def _takes_several(argument: Argument) -> bool:
    return bool(argument.token_count()[1]) and argument.parameter.consume_multiple != (0, 1)


def _help(argument: Argument) -> str:
    text = argument.parameter.help or ""
    default = argument.field_info.default
    if "default" in text or isinstance(default, bool) or not isinstance(default, (int, float, str, tuple)):
        return text
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"{text} (default: {shown})" if shown else text
