"""The parts of the campaign by name. Each is a module with ``run(plan)``, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from torture.records import Part

PARTS = {
    "kills": "torture.kills",
    "disks": "torture.disks",
    "inputs": "torture.inputs",
    "concurrency": "torture.concurrency",
    "soak": "torture.soak",
}
"""Part → module."""


def part_named(name: str) -> Part:
    """The part's ``run``."""
    run: Part = import_module(PARTS[name]).run
    return run
