"""The page ``docs/reliability.md``: a table for each part that was run, and the faults that the campaign found."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from benchmarks.pages import put_into
from torture.parts import PARTS
from torture.results import RESULTS, Tally, read

PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
FAULTS = Path(__file__).parent / "faults.toml"


def table(tally: Tally) -> str:
    """Kind by kind: how many cases, and how they ended."""
    lines = ["| kind | cases | outcomes | failing |", "|---|---:|---|---:|"]
    for kind, counts in sorted(tally.kinds.items()):
        ends = "; ".join(f"{result}: {number:,}" for result, number in counts.most_common())
        lines.append(f"| {kind} | {counts.total():,} | {ends} | {tally.failing[kind]} |")
    took = ", ".join([f"in {_duration(tally.seconds)}", *_seeds(tally.seeds)])
    lines.append(f"| **all** | **{tally.cases:,}** | {took} | **{tally.failing.total()}** |")
    return "\n".join(lines)


def faults() -> list[dict[str, Any]]:
    """What the campaign found: part, what it was, how it was mended, the test that holds it, the seed."""
    with FAULTS.open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["fault"]
    return found


def fault_table(found: list[dict[str, Any]]) -> str:
    """Each fault in a row."""
    lines = ["| part | fault | mended | test |", "|---|---|---|---|"]
    for each in found:
        seed = f" (seed {each['seed']})" if "seed" in each else ""
        lines.append(f"| {each['part']} | {each['what']}{seed} | {each['mended']} | `{each['test']}` |")
    return "\n".join(lines)


def write_page() -> None:
    """Put the stored counts of each part, and the faults, into the page."""
    for name in PARTS:
        path = RESULTS / f"{name}.json"
        put_into(PAGE, name, table(read(path)) if path.exists() else "No counts are stored yet.")
    put_into(PAGE, "faults", fault_table(faults()))


def _seeds(ranges: list[list[int]]) -> list[str]:
    """Where cases differ by their seeds."""
    shown = " and ".join(f"{first:,} to {last:,}" for first, last in ranges if last > first)
    return [f"seeds {shown}"] if shown else []


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
