"""Equal-width bins of the confidence, for reliability diagrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import BoolArray, FloatArray, IntArray, check_bins, check_confidence
from otpt.metrics.scores import confidence_and_correct

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """M bins of the confidence: count, accuracy and mean confidence of each."""

    edges: FloatArray
    """(M + 1,) from 0 to 1."""
    counts: IntArray
    """(M,) number of images n_m."""
    accuracy: FloatArray
    """(M,) fraction of correct predictions acc_m; nan where the bin is empty."""
    confidence: FloatArray
    """(M,) mean confidence conf_m; nan where the bin is empty."""
    total: int
    """Number of images N, including those in no bin."""

    @property
    def gaps(self) -> FloatArray:
        """(M,) conf_m − acc_m, positive for over-confidence; nan where the bin is empty."""
        return self.confidence - self.accuracy


def bin_edges(bins: int) -> FloatArray:
    """(M + 1,) edges m/M, each the float32 nearest to it.

    Confidences are float32 numbers, so an edge must be one too: the float32 confidence 0.05 is larger than
    the float64 edge 0.05 and would leave its bin.
    """
    return np.linspace(0.0, 1.0, bins + 1).astype(np.float32).astype(np.float64)


def bin_index(values: FloatArray, bins: int, side: str) -> IntArray:
    """Number of the bin each value in [0, 1] falls into, of the shape of ``values``; −1 for none.

    ``side="right"``: (lo, hi], the field's convention, where 0 is in no bin. ``side="left"``: [lo, hi), whose
    last bin holds 1 as well.
    """
    edges = bin_edges(bins)
    if side == "right":
        return np.asarray(np.searchsorted(edges, values, side="left") - 1, dtype=np.int64)
    return np.asarray(np.minimum(np.searchsorted(edges, values, side="right") - 1, bins - 1), dtype=np.int64)


def groups(values: IntArray | FloatArray) -> tuple[IntArray, IntArray]:
    """Order that sorts ``values`` (N,), and where each run of equal numbers starts in it, for ``reduceat``."""
    order = np.argsort(values, kind="stable")
    return order, np.unique(values[order], return_index=True)[1]


def reliability_bins(probabilities: Values, labels: Values, *, bins: int = 20, side: str = "right") -> ReliabilityBins:
    """Count, accuracy and mean confidence of equal-width bins, from probabilities (N, C) and labels (N,)."""
    check_bins(bins, side)
    return binned(*confidence_and_correct(probabilities, labels), bins, side)


def reliability_bins_from_confidence(
    confidence: Values, correct: Values, *, bins: int = 20, side: str = "right"
) -> ReliabilityBins:
    """The same from confidence (N,) and whether the prediction was correct (N,).

    >>> r = reliability_bins_from_confidence([0.3, 0.9, 0.8], [0, 1, 0], bins=2)
    >>> r.counts, r.accuracy
    (array([1, 2]), array([0. , 0.5]))
    """
    check_bins(bins, side)
    return binned(*check_confidence(confidence, correct), bins, side)


def binned(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> ReliabilityBins:
    """``reliability_bins`` of checked input."""
    index = bin_index(confidence, bins, side)
    inside = index >= 0
    index, conf, right = index[inside], confidence[inside], correct[inside]
    counts = np.bincount(index, minlength=bins)
    filled = counts > 0
    empty = np.full(bins, np.nan)
    return ReliabilityBins(
        edges=bin_edges(bins),
        counts=counts.astype(np.int64),
        accuracy=np.divide(np.bincount(index, weights=right, minlength=bins), counts, out=empty.copy(), where=filled),
        confidence=np.divide(np.bincount(index, weights=conf, minlength=bins), counts, out=empty.copy(), where=filled),
        total=len(confidence),
    )
