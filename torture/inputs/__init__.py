"""Hostile inputs: files, names and addresses made by somebody who means harm.

A case makes an input of one kind from its seed, in a folder of its own, and asks the package to read it. It must end
with an answer or with one sentence (an ``OtptError``), within bounds of time and memory, without running code of the
input and without touching a file outside that folder. ``python -m torture inputs --kind tars --seed 7 --cases 1``
repeats a case.

Further kinds, such as the interface of a service, are added with :func:`torture.inputs.kinds.plug_in`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from torture.inputs.kinds import schedule
from torture.inputs.workers import judged
from torture.records import Outcome, PartOptions

_BATCH = 1000


def run(options: PartOptions) -> Iterator[Outcome]:
    """The outcomes of ``options.cases`` cases, or without end; kinds take turns, unless one is asked for."""
    turns = [options.kind] if options.kind is not None else schedule()
    seeds = islice(count(options.seed), options.cases)
    while batch := [(turns[seed % len(turns)], seed) for seed in islice(seeds, _BATCH)]:
        yield from judged(batch, options.folder)
