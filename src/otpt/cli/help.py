"""The help page of a command: its options by group."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from cyclopts.argument import Argument

from otpt.cli.app import make_app
from otpt.cli.commands import help_width, print_entry

SHOWN = ("Arguments", "Options", "Method", "Data", "Model", "Run", "Training")
"""Groups of options that ``--help`` shows; ``--help-all`` also shows the others."""


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
    value = "" if argument.token_count()[0] == 0 else f" {_metavar(argument)}"
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
