"""Metrics of what rows of results keep of each image, where not all probabilities are there."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from otpt.errors import unknown
from otpt.metrics._inputs import BoolArray, FloatArray, IntArray, Statistic, check_bins
from otpt.metrics._weighted import mean_statistic, statistic_of_confidence
from otpt.metrics.calibration_error import adaptive_ece, ece, mce
from otpt.metrics.classwise import KeptProbabilities, sce_of_kept, sce_statistic_of_kept
from otpt.metrics.scores import NLL_FLOOR
from otpt.metrics.summary import Metrics

RESAMPLED = ("accuracy", "ece", "sce", "brier", "nll")
"""Metrics that can be resampled from what is kept."""


class Kept(KeptProbabilities, Protocol):
    """What rows keep of N images; all attributes (N,) but those of :class:`KeptProbabilities`."""

    @property
    def confidences(self) -> FloatArray:
        """Largest probabilities."""

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction is the label."""

    @property
    def ranks(self) -> IntArray:
        """How many classes rank before the label."""

    @property
    def squares(self) -> FloatArray:
        """Σ_c p_c²."""

    @property
    def entropies(self) -> FloatArray:
        """−Σ_c p_c log p_c in nats."""


def evaluate_kept(kept: Kept, *, bins: int, side: str) -> Metrics:
    """Every metric; the same bits for any order of the images: sums are exact, or of sorted numbers."""
    check_bins(bins, side)
    order = np.lexsort((kept.correct, kept.confidences))
    confidence, correct = kept.confidences[order], kept.correct[order]
    return Metrics(
        images=len(kept.labels),
        classes=len(kept.class_sums),
        accuracy=float(correct.mean()),
        top5_accuracy=float((kept.ranks < 5).mean()),
        ece=ece(confidence, correct, bins, side),
        adaptive_ece=adaptive_ece(confidence, correct, bins),
        mce=mce(confidence, correct, bins, side),
        sce=sce_of_kept(kept, bins, side),
        brier=exact_mean(_brier(kept)),
        nll=exact_mean(_nll(kept)),
        confidence=exact_mean(confidence),
        overconfidence=exact_mean(confidence - correct),
        entropy=exact_mean(kept.entropies),
        bins=int(bins),
        side=side,
    )


def statistic_of_kept(metric: str, kept: Kept, bins: int, side: str) -> Statistic:
    """A metric of :data:`RESAMPLED` as a function of how often each image was drawn."""
    if metric in {"accuracy", "ece"}:
        return statistic_of_confidence(metric, kept.confidences, kept.correct, bins, side)
    if metric == "brier":
        return mean_statistic(_brier(kept))
    if metric == "nll":
        return mean_statistic(_nll(kept))
    if metric == "sce":
        return sce_statistic_of_kept(kept, bins, side)
    raise unknown("metric", metric, RESAMPLED)


def exact_mean(values: FloatArray) -> float:
    """The mean of a sum without rounding, so that the order does not matter."""
    return math.fsum(values) / len(values)


def _brier(kept: Kept) -> FloatArray:
    return kept.squares - 2.0 * kept.probabilities + 1.0


def _nll(kept: Kept) -> FloatArray:
    return np.asarray(-np.log(np.clip(kept.probabilities, NLL_FLOOR, 1.0)) + 0.0)
