"""The mean cosine similarity of the text features that each image was predicted with, and the groups that it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics import expected_calibration_error
from otpt.report.results import ResultKey, Results
from otpt.runs import Rows

SPLITS = ("median", "init")
BY = "tpt"
"""The method whose similarity makes the groups."""


def init_cosine(results: Results, key: ResultKey) -> float | None:
    """The mean cosine similarity under the initial prompt: that of a method that adapts nothing; None without one.

    Args:
        key: its data set, seed and prompt are meant; its method does not matter.
    """
    for method in results.methods:
        other = key._replace(method=method)
        score = results.score(other)
        if score is None or score.mean_cosine is None:
            continue
        numbers = results.run_of(other).config["methods"][method]
        if numbers["adapt"] == "context" and not numbers["objectives"]:
            return score.mean_cosine
    return None


def check_cosines(rows: Rows, key: ResultKey) -> Rows:
    """The rows; :class:`OtptError` if they have no similarities."""
    if np.isnan(rows.mean_cosines).any():
        raise OtptError(
            f"The rows of {key.method!r} on {key.dataset!r} have no mean cosine similarity, since it has no text "
            "features; choose others with --methods."
        )
    return rows


@dataclass(frozen=True)
class Groups:
    """Images split by their mean cosine similarity under :data:`BY`.

    Attributes:
        threshold: the similarity that parts them.
        above: (N,) whether an image's similarity is greater.
    """

    threshold: float
    above: npt.NDArray[np.bool_]


def check_groups(results: Results) -> None:
    """:class:`OtptError` if the runs lack the method that makes the groups."""
    if BY not in results.methods:
        raise OtptError(
            f"The groups are made by the similarity of {BY!r}, which the runs do not hold; add it to a run."
        )


def two_groups(results: Results, key: ResultKey, *, split: str = "median") -> Groups:
    """The images of ``key`` split by the similarity of :data:`BY`: at its median, or at the initial value."""
    own = key._replace(method=BY)
    cosines = check_cosines(results.rows(own), own).mean_cosines
    threshold = float(np.median(cosines)) if split == "median" else init_cosine(results, key)
    if threshold is None:
        raise OtptError(
            f"The initial value of the similarity on {key.dataset!r} is not in the runs; add 'zero-shot' to the "
            "methods."
        )
    return Groups(threshold, cosines > threshold)


def group_rows(results: Results, key: ResultKey, groups: Groups) -> Rows:
    """The rows of ``key``, which must be of the very images that were grouped."""
    rows = results.rows(key)
    if len(rows) != len(groups.above):
        raise OtptError(
            f"{key.method!r} and {BY!r} did not see the same images of {key.dataset!r}, so they cannot be grouped."
        )
    return rows


def group_value(results: Results, rows: Rows, metric: str, own: npt.NDArray[np.bool_]) -> float | None:
    """Accuracy or ECE of the rows in a group, (N,) ``own``; None of an empty one."""
    correct, confidence = rows.correct[own], rows.confidences[own]
    if not len(correct):
        return None
    if metric == "accuracy":
        return float(correct.mean())
    return expected_calibration_error(confidence, correct, n_bins=results.bins, side=results.side)
