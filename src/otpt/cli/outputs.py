"""Files that commands write are not overwritten without ``--overwrite``: one rule for all commands, added to them here.

An option declared with :func:`otpt.cli.options.out` or :func:`otpt.cli.options.figure` names a file that is written.
Every command with such an option gets the option ``--overwrite`` and refuses existing files before any work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

from cyclopts import Parameter

from otpt.errors import OtptError

Command = Callable[..., int | None]

OVERWRITE = Parameter(help="replace existing files")


class NewFile:
    """Mark of an option that names a file to write."""

    def __call__(self, _type: type, value: Path | tuple[Path, ...] | None) -> None:
        """Accept every value, as a validator of cyclopts; :func:`with_overwrite` checks them all at once."""


NEW_FILE = NewFile()


def with_overwrite(command: Command) -> Command:
    """Return a command with ``--overwrite``, if it writes files and does not have the option yet."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    if "overwrite" in signature.parameters or not any(_writes(hint) for hint in hints.values()):
        return command

    @functools.wraps(command)
    def checked(*arguments: object, overwrite: bool = False, **keywords: object) -> int | None:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        if not overwrite:
            for name, value in bound.arguments.items():
                refuse_existing(_files(hints.get(name), value))
        return command(*arguments, **keywords)

    option = inspect.Parameter(
        "overwrite", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, OVERWRITE]
    )
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    vars(checked)["__signature__"] = signature.replace(parameters=_insert(parameters, option))
    checked.__annotations__ = {**hints, "overwrite": Annotated[bool, OVERWRITE]}
    vars(checked).pop("__wrapped__")  # cyclopts would read the parameters of the command itself
    return checked


def refuse_existing(files: Iterator[Path]) -> None:
    """Raise an :class:`OtptError` for the first file that exists."""
    for file in files:
        if file.is_file():
            raise OtptError(f"The file {str(file)!r} exists; choose another name, or replace it with --overwrite.")


def _insert(parameters: list[inspect.Parameter], option: inspect.Parameter) -> list[inspect.Parameter]:
    """Insert an option after the parameter that names the output, so that help pages show them together."""
    kinds = [parameter.kind for parameter in parameters]
    after = [at for at, parameter in enumerate(parameters) if _writes(parameter.annotation)]
    keyword_only = [at for at in after if kinds[at] is inspect.Parameter.KEYWORD_ONLY]
    at = keyword_only[0] + 1 if keyword_only else len(parameters)
    return [*parameters[:at], option, *parameters[at:]]


def _writes(hint: object) -> bool:
    """Return whether an option, or one of a group of options, names a file to write."""
    if _is_marked(hint):
        return True
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(kind, type) and is_dataclass(kind):
        return any(_writes(field) for field in get_type_hints(kind, include_extras=True).values())
    return False


def _is_marked(hint: object) -> bool:
    for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        validators = getattr(mark, "validator", ()) or ()
        if NEW_FILE in (validators if isinstance(validators, (tuple, list)) else (validators,)):
            return True
    return False


def _files(hint: object, value: object) -> Iterator[Path]:
    """Yield the files to write that the value of an option or group of options names."""
    if _is_marked(hint):
        yield from value if isinstance(value, tuple) else [value] if isinstance(value, Path) else []
    elif is_dataclass(value):
        hints = get_type_hints(type(value), include_extras=True)
        for field in fields(value):
            yield from _files(hints[field.name], getattr(value, field.name))
