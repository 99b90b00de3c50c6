"""The mean cosine similarity that each picture was judged by, and the two groups of pictures that it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics import ece_from_confidence
from otpt.report.runs import Cell, Results, Rows

SPLITS = ("median", "start")


def start_cosine(results: Results, cell: Cell) -> float | None:
    """The mean cosine similarity under the start prompt: that of any method that tunes nothing; None without one.

    Args:
        cell: its data set, seed and prompt are meant; its method does not matter.
    """
    for method in results.methods:
        other = cell._replace(method=method)
        score = results.score(other)
        if score is None or score.mean_cosine is None:
            continue
        numbers = {each["name"]: each for each in results.run_of(other).config["methods"]}
        if not numbers[method]["objectives"]:
            return score.mean_cosine
    return None


@dataclass(frozen=True)
class Groups:
    """Pictures split by the mean cosine similarity that one method gave them.

    Attributes:
        split: "median" or "start".
        threshold: the similarity that parts them.
        above: (N,) whether a picture's similarity is greater.
    """

    split: str
    threshold: float
    above: npt.NDArray[np.bool_]


def two_groups(results: Results, cell: Cell, *, by: str = "tpt", split: str = "median") -> Groups:
    """The pictures of ``cell`` split by the similarity of the method ``by``: at its median, or at the start value."""
    cosines = results.rows(cell._replace(method=by)).mean_cosines
    if split == "median":
        threshold: float | None = float(np.median(cosines))
    else:
        threshold = start_cosine(results, cell)
    if threshold is None:
        raise OtptError(
            f"The start value of the similarity on {cell.dataset!r} is not in the runs; add 'zero-shot' to the methods."
        )
    return Groups(split, threshold, cosines > threshold)


def group_rows(results: Results, cell: Cell, groups: Groups, *, by: str = "tpt") -> Rows:
    """The rows of ``cell``, which must be of the very pictures that were grouped."""
    rows = results.rows(cell)
    if len(rows) != len(groups.above):
        raise OtptError(
            f"{cell.method!r} and {by!r} did not see the same pictures of {cell.dataset!r}, so they cannot be grouped."
        )
    return rows


def group_value(results: Results, rows: Rows, metric: str, own: npt.NDArray[np.bool_]) -> float | None:
    """Accuracy or ECE of the rows in a group, (N,) ``own``; None of an empty one."""
    correct, confidence = rows.correct[own], rows.confidences[own]
    if not len(correct):
        return None
    if metric == "accuracy":
        return float(correct.mean())
    return ece_from_confidence(confidence, correct, bins=results.bins, side=results.side)
