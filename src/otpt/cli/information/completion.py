"""``otpt completion bash``: completion of commands, options, methods, data sets and models in the shell.

eval "$(otpt completion bash)"      # in ~/.bashrc; zsh alike
otpt completion fish | source       # in ~/.config/fish/config.fish

The shell then runs ``otpt`` at each Tab, which answers in a few hundredths of a second: only the module of the command
on the line is imported, and no model library.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterable
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``completion``."""
    parser.description = (
        'Print what makes a shell complete otpt\'s commands: eval "$(otpt completion bash)" in ~/.bashrc, the same '
        "with zsh in ~/.zshrc; otpt completion fish | source in fish."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the code for the shell."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["otpt"], shell=options.shell))
    return 0


def complete() -> int:
    """Answer the shell: what may stand at the cursor of the line in ``COMP_LINE``."""
    import argcomplete

    from otpt.cli.parser import make_parser

    words = _words(os.environ.get("COMP_LINE", ""))
    chosen = next((word for word in words[1:] if not word.startswith("-")), "")
    parser = make_parser([chosen])
    _add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options="long")
    return 0


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote is open
        return line.split()


def _add_completers(parser: argparse.ArgumentParser) -> None:
    """Names of methods, data sets and models, for each option that takes them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _add_completers(below)
        for name in action.option_strings or [action.dest]:
            if name in _COMPLETERS:
                action.completer = _COMPLETERS[name]  # type: ignore[attr-defined]


def _methods(prefix: str, **_: Any) -> Iterable[str]:
    from otpt.methods import field_methods, known_parts, published_methods

    whole = {**published_methods(), **field_methods(), **known_parts()}
    begun = prefix.rpartition("+")[0]  # tpt+sa → tpt+sals
    return [*whole, *(f"{begun}+{part}" for part in known_parts() if begun)]


def _datasets(prefix: str, **more: Any) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    from otpt.data.registered.entry import builtin_entries

    return [*builtin_entries(), *FilesCompleter()(prefix, **more)]


def _models(prefix: str, **more: Any) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    from otpt.backbones.sources.open_clip_names import open_clip_names

    named = [f"{name}/{tag}" for name, tags in open_clip_names().tags.items() for tag in tags]
    return ["pocket", *named, *FilesCompleter()(prefix, **more)]


_COMPLETERS: dict[str, Callable[..., Iterable[str]]] = {
    "--methods": _methods,
    "--method": _methods,
    "--a": _methods,
    "--b": _methods,
    "--backbone": _models,
    "datasets": _datasets,
    "dataset": _datasets,
}
"""By option, or by the name of what is given without one."""
