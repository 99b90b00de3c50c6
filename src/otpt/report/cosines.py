"""The mean cosine similarity of the text features of each prediction, and the two groups of images that it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics import ece
from otpt.report.results import ResultKey, Results
from otpt.runs import Rows

SPLITS = ("median", "init")
BY = "tpt"
"""The method whose similarity makes the groups."""


@dataclass(frozen=True)
class Groups:
    """Images split by their mean cosine similarity under :data:`BY`.

    Attributes:
        threshold: the similarity that separates them.
        above: (N,) whether an image's similarity is greater.
    """

    threshold: float
    above: npt.NDArray[np.bool_]


def init_cosine(results: Results, key: ResultKey) -> float | None:
    """Mean cosine similarity under the initial prompt, that of a method that adapts nothing; None without one."""
    methods = {name: method for run in results.runs for name, method in run.config["methods"].items()}
    own = results.select(dataset=key.dataset, seed=key.seed, prompt=key.prompt)
    for method, cosine in zip(own["method"], own["mean_cosine"], strict=True):
        if methods[method]["adapt"] == "context" and not methods[method]["objectives"] and np.isfinite(cosine):
            return float(cosine)
    return None


def cosine_rows(results: Results, key: ResultKey) -> Rows:
    """The rows of ``key``; :class:`OtptError` if they have no similarities."""
    rows = results.rows(key)
    if np.isnan(rows.mean_cosines).any():
        raise OtptError(
            f"The rows of {key.method!r} on {key.dataset!r} have no mean cosine similarity, since it has no text "
            "features; choose others with --methods."
        )
    return rows


def two_groups(results: Results, key: ResultKey, split: str = "median") -> Groups:
    """Split the images of ``key`` by the similarity of :data:`BY`: at its median, or at the initial value."""
    if BY not in results.methods:
        raise OtptError(f"The groups are made by the similarity of {BY!r}, which the runs lack; add it to a run.")
    cosines = cosine_rows(results, key._replace(method=BY)).mean_cosines
    threshold = float(np.median(cosines)) if split == "median" else init_cosine(results, key)
    if threshold is None:
        raise OtptError(
            f"The initial similarity on {key.dataset!r} is not in the runs; add 'zero-shot' to the methods."
        )
    return Groups(threshold, cosines > threshold)


def group_rows(results: Results, key: ResultKey, groups: Groups) -> Rows:
    """The rows of ``key``, which must be of the images that were grouped."""
    rows = results.rows(key)
    if len(rows) != len(groups.above):
        raise OtptError(f"{key.method!r} and {BY!r} did not see the same images of {key.dataset!r}.")
    return rows


def group_value(results: Results, rows: Rows, metric: str, own: npt.NDArray[np.bool_]) -> float:
    """Accuracy or ECE of the rows of a group, (N,) ``own``; nan for an empty one."""
    correct, confidence = rows.correct[own], rows.confidences[own]
    if not len(correct):
        return float("nan")
    if metric == "accuracy":
        return float(correct.mean())
    return ece(confidence, correct, n_bins=results.n_bins, side=results.side)
