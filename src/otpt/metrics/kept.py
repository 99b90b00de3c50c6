"""Metrics of what rows of results keep of each image, where not all probabilities are there."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from otpt.errors import unknown
from otpt.metrics._inputs import BoolArray, FloatArray, IntArray, Statistic, check_bins, of_all
from otpt.metrics._weighted import (
    OF_CONFIDENCE,
    OF_PROBABILITIES,
    further_values,
    mean_statistic,
    statistic_of_confidence,
)
from otpt.metrics.calibration.calibration_error import adaptive_ece, ece, mce
from otpt.metrics.calibration.classwise import KeptProbabilities, sce_of_kept, sce_statistic_of_kept
from otpt.metrics.f1 import macro_f1_statistic
from otpt.metrics.scores import NLL_FLOOR, top_label_brier_values
from otpt.metrics.summary import Metrics

RESAMPLED = tuple(name for name in OF_PROBABILITIES if name != "classwise_adaptive_ece")
"""Metrics that can be resampled from what is kept."""


class Kept(KeptProbabilities, Protocol):
    """What rows keep of N images; all attributes (N,) but those of :class:`KeptProbabilities`."""

    @property
    def predictions(self) -> IntArray:
        """Most probable classes."""

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
        macro_f1=of_all(macro_f1_statistic(kept.predictions, kept.labels), len(kept.labels)),
        brier=exact_mean(_brier(kept)),
        top_label_brier=exact_mean(top_label_brier_values(confidence, correct)),
        nll=exact_mean(_nll(kept)),
        confidence=exact_mean(confidence),
        overconfidence=exact_mean(confidence - correct),
        entropy=exact_mean(kept.entropies),
        **further_values(confidence, correct, bins, side),
        bins=int(bins),
        side=side,
    )


def statistic_of_kept(metric: str, kept: Kept, bins: int, side: str) -> Statistic:
    """A metric of :data:`RESAMPLED` as a function of how often each image was drawn."""
    if metric in OF_CONFIDENCE:
        return statistic_of_confidence(metric, kept.confidences, kept.correct, bins, side)
    if metric == "top5_accuracy":
        return mean_statistic((kept.ranks < 5).astype(np.float64))
    if metric == "macro_f1":
        return macro_f1_statistic(kept.predictions, kept.labels)
    if metric == "entropy":
        return mean_statistic(kept.entropies)
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
