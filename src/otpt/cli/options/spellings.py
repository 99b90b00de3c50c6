"""Options of one meaning on every command, each under its two spellings; and old spellings, which give a hint.

| option | meaning |
|---|---|
| ``--methods``, ``--method`` | names of methods, or TOML files of them |
| ``--set`` | settings of the methods, in place of the published ones |
| ``--seeds``, ``--seed`` | seeds of whatever is random: of the views, or of a training |
| ``--workers`` | processes |
| ``--threads`` | threads of each process, those that compute and those that decode and augment |
| ``-o``, ``--out`` | where the result goes |
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from otpt.cli.notes import tell
from otpt.errors import OtptError

Parser = Any
"""A parser, or a group of its options."""


def add_methods_option(
    parser: Parser, *, default: Sequence[str] | None, words: str, dest: str = "methods", several: bool = True
) -> None:
    """``--methods NAME …``, also as ``--method``; or, if not ``several``, one of them."""
    _add(parser, "--methods", "--method", default, several, dest=dest, metavar="NAME", help=words)


def add_seeds_option(
    parser: Parser, *, default: Sequence[int] | None, words: str, dest: str = "seeds", several: bool = True
) -> None:
    """``--seeds N …``, also as ``--seed``; or, if not ``several``, one of them."""
    _add(parser, "--seeds", "--seed", default, several, dest=dest, metavar="N", help=words, type=int)


def _add(parser: Parser, plural: str, one: str, default: Sequence[Any] | None, several: bool, **more: Any) -> None:
    if several:
        parser.add_argument(plural, one, nargs="+", default=None if default is None else list(default), **more)
    else:
        parser.add_argument(one, plural, default=None if default is None else default[0], **more)


def add_settings_option(parser: Parser, words: str, *, metavar: str = "NAME=VALUE") -> None:
    """``--set NAME=VALUE …``."""
    parser.add_argument("--set", nargs="+", default=[], dest="settings", metavar=metavar, help=words)


def add_training_seed(parser: Parser, default: int, words: str) -> None:
    """``--seed N`` of a training, also as ``--seeds``."""
    add_seeds_option(
        parser, default=[default], words=f"seed of {words} (default: {default})", dest="seed", several=False
    )


def add_threads_option(parser: Parser) -> None:
    """``--threads N``; see :func:`use_threads`."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each process; 0: one, which also decodes and augments (default: one per core)",
    )


def add_workers_option(parser: Parser) -> None:
    """``--workers N``."""
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per GPU, or one)")


def use_threads(threads: int | None) -> None:
    """Compute in so many threads; None leaves the number as it is. The answers have the same bits with any number."""
    if threads is None:
        return
    if threads < 0:
        raise OtptError(f"--threads was given {threads}; expected 0 or more.")
    import torch

    torch.set_num_threads(max(threads, 1))


def add_out_option(parser: Parser, *, metavar: str, words: str, **more: Any) -> None:
    """``--out``, also as ``-o``."""
    parser.add_argument("-o", "--out", type=Path, metavar=metavar, help=words, **more)


def add_old_spelling(parser: Parser, old: str, new: str, *, dest: str, **more: Any) -> None:
    """An option that is not shown any more; whoever gives it is told the new one, in one line."""
    parser.add_argument(old, action=_Old, new=new, dest=dest, help=argparse.SUPPRESS, **more)


class _Old(argparse.Action):
    def __init__(self, *arguments: Any, new: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._new = new

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        tell(f"{option} is an old spelling; write {self._new}.")
        setattr(namespace, self.dest, values)


def flag(name: str) -> str:
    """An option as it is typed: ``cache_size`` → ``--cache-size``."""
    return f"--{name.replace('_', '-')}"
