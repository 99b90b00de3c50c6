"""What one case of the campaign is and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True)
class PartOptions:
    """How much of a part to run.

    Args:
        folder: for everything that the cases write; empty at the beginning, deleted in the end.
        cases: at most so many; None for as many as the part has.
        seed: of the first case; the n-th case has ``seed + n``, so that ``--seed SEED --cases 1`` repeats one.
        minutes: no case begins later; None for no bound.
        kind: only cases of this kind; None for all.
        images: of those parts that go through many (the soak).
    """

    folder: Path
    cases: int | None = None
    seed: int = 0
    minutes: float | None = None
    kind: str | None = None
    images: int | None = None


@dataclass(frozen=True)
class Case:
    """One thing that was tried.

    Attributes:
        kind: a row of the part's table.
        seed: all that is random in the case follows from it and from the kind.
        detail: what the seed chose, in words.
    """

    kind: str
    seed: int
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        result: a short phrase that many cases share, such as "same bytes" or "one sentence"; they are counted.
        ok: whether the promise held.
        note: what was seen, for a case that failed.
    """

    case: Case
    result: str
    ok: bool
    note: str = ""
    seconds: float = 0.0


Part = Callable[[PartOptions], Iterator[Outcome]]
"""A part of the campaign: outcomes one after another. It need not look at the clock: the one who asks stops asking."""


def numbered(options: PartOptions, kinds: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(kind, seed, number of the case within its kind): kinds in turn, so that the seed alone says which case it is."""
    for seed in count(options.seed):
        kind = kinds[seed % len(kinds)]
        if options.kind in (None, kind):
            yield kind, seed, seed // len(kinds)
