"""Help pages: the commands, or the options of one command by group."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from cyclopts.argument import Argument

from otpt.cli.app import all_commands, make_app
from otpt.cli.options import ADVANCED

_INDENT = 26


def print_help(name: str | None, words: Sequence[str], *, complete: bool) -> None:
    """Print the help of a command, or the list of commands (below ``words[0]``, if that has sub-commands)."""
    width = max(60, min(shutil.get_terminal_size().columns, 120))
    if name is None:
        _print_commands(words, width)
    else:
        _print_options(name, width, complete)


def _print_commands(words: Sequence[str], width: int) -> None:
    below = words[0] if words and not words[0].startswith("-") else ""
    print(f"Usage: otpt{' ' + below if below else ''} COMMAND …\n")
    if not below:
        print("Calibrated test-time adaptation of CLIP-like models.\n")
    for group, commands in all_commands().items():
        own = {name: summary for name, (_, summary) in commands.items() if name.startswith(below)}
        if own:
            print(f"{group}:")
            for name, summary in own.items():
                _print_entry(name.removeprefix(f"{below} "), summary, width, 20)
            print()
    print("'otpt COMMAND --help' shows the options of a command, 'otpt --version' the version.")


def _print_options(name: str, width: int, complete: bool) -> None:
    target, summary = next(own[name] for own in all_commands().values() if name in own)
    app = make_app(name, target)
    arguments = [each for each in app.assemble_argument_collection() if each.parse and each.show]
    places = [each for each in arguments if not each.name.startswith("-")]
    usage = " ".join(f"[{_metavar(each)} …]" if _is_several(each) else _metavar(each) for each in places)
    print(f"Usage: otpt {name} {usage}{' ' * bool(usage)}[OPTIONS]\n")
    text = " ".join((app.default_command.__doc__ or summary).split()) if app.default_command else summary
    print(f"{textwrap.fill(text, width)}\n")
    groups: dict[str, list[Argument]] = {}
    for each in arguments:
        groups.setdefault("Arguments" if each in places else _group(each), []).append(each)
    hidden = [group for group in groups if group in ADVANCED and not complete]
    for group, own in groups.items():
        if group in hidden:
            continue
        print(f"{group}:")
        for each in own:
            _print_entry(_spelling(each), _help(each), width, _INDENT)
        print()
    if hidden:
        print(f"More with --help-all: {', '.join(group.lower() for group in hidden)}.")


def _print_entry(left: str, right: str, width: int, indent: int) -> None:
    lines = textwrap.wrap(right, width - indent) or [""]
    head = f"  {left}"
    if len(head) + 2 > indent:
        print(head)
    else:
        print(f"{head:<{indent}}{lines.pop(0)}".rstrip())
    for line in lines:
        print(f"{'':<{indent}}{line}")


def _group(argument: Argument) -> str:
    groups = argument.parameter.group or ()
    name = next((getattr(each, "name", str(each)) for each in groups), "")
    return name if name and name not in ("Parameters", "Arguments") else "Options"


def _spelling(argument: Argument) -> str:
    if not argument.name.startswith("-"):
        return _metavar(argument)
    value = "" if argument.token_count()[0] == 0 else f" {_metavar(argument)}"
    return f"{', '.join(argument.names)}{value}{' …' if value and _is_several(argument) else ''}"


def _metavar(argument: Argument) -> str:
    choices = argument.get_choices()
    if argument.parameter.metavar:
        return str(argument.parameter.metavar)
    if choices:
        return "|".join(choices)
    kinds = {"int": "N", "float": "X", "Path": "PATH"}
    hint = str(argument.hint)
    return next((short for kind, short in kinds.items() if kind in hint), argument.name.lstrip("-").upper())


def _is_several(argument: Argument) -> bool:
    return bool(argument.token_count()[1]) and argument.parameter.consume_multiple != (0, 1)


def _help(argument: Argument) -> str:
    text = argument.parameter.help or ""
    default = argument.field_info.default
    shown = isinstance(default, (int, float, str, tuple)) and not isinstance(default, bool) and default not in ("", ())
    if shown and "default" not in text:
        words = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default: {words})"
    return text
