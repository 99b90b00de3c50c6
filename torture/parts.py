"""The parts of the campaign by name; a part is imported when it is asked for."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from torture.inside import outcomes
from torture.records import Part

PARTS = {
    "kills": "torture.kills",
    "disks": "torture.disks",
    "inputs": "torture.inputs",
    "concurrency": "torture.concurrency",
    "soak": "torture.soak",
}
"""Part → module: with ``run(options)``, or one of those below."""

WITH_SHIM = ("kills", "disks", "concurrency")
"""Parts whose module has ``cases(options, bench)``, which a process with the shim runs."""

OWN_CLOCK = ("soak",)
"""Parts that look at the minutes themselves: their outcomes all come in the end."""


def part_named(name: str) -> Part:
    """The part as a function of its options."""
    if name in WITH_SHIM:
        return partial(outcomes, PARTS[name])
    run: Part = import_module(PARTS[name]).run
    return run
