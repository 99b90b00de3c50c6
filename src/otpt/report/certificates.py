"""What a run of PromptSmooth says of its certificates."""

from __future__ import annotations

import math
from collections.abc import Iterable

from otpt.runs import Run


def certified_accuracy(run: Run, method: str, radii: Iterable[float]) -> tuple[dict[float, float | None], float | None]:
    """For each radius, the fraction of images that are correct and certified for perturbations of at least this norm;
    and the fraction on which the method abstained, which count as wrong. None without a readable image.

    Images are those of all data sets and seeds of the run.
    """
    places = [place for place in run.everything() if place[2][1] == method]
    rows = [row for place in places for shard in run.shards(*place) for row in shard.table.to_pylist()]
    rows = [row for row in rows if row["error"] is None]
    abstained = ["abstained" in row["flags"] for row in rows]
    reached = [
        row["radius"] if row["correct"] and not none else -math.inf for row, none in zip(rows, abstained, strict=True)
    ]
    return {radius: _fraction([each >= radius for each in reached]) for radius in radii}, _fraction(abstained)


def _fraction(holds: list[bool]) -> float | None:
    return sum(holds) / len(holds) if holds else None
