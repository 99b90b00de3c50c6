"""Metrics of predictions: pure functions of (probabilities, labels), or of (confidence, correct).

Numpy arrays and torch tensors are accepted alike. Values are Python floats; shares lie between 0 and 1 and
are not percentages: ``percent`` and ``Metrics.as_percent`` print them as published tables do.
"""

from otpt.metrics.binning import ReliabilityBins, reliability_bins, reliability_bins_from_confidence
from otpt.metrics.calibration_error import (
    adaptive_calibration_error,
    adaptive_ece_from_confidence,
    classwise_calibration_error,
    ece_from_confidence,
    expected_calibration_error,
    maximum_calibration_error,
    mce_from_confidence,
)
from otpt.metrics.resampling import (
    Interval,
    bootstrap,
    bootstrap_difference,
    bootstrap_difference_from_confidence,
    bootstrap_from_confidence,
)
from otpt.metrics.scores import (
    NLL_FLOOR,
    accuracy,
    brier_score,
    confidence_and_correct,
    mean_entropy,
    negative_log_likelihood,
    overconfidence,
)
from otpt.metrics.summary import Metrics, evaluate, percent

__all__ = [
    "NLL_FLOOR",
    "Interval",
    "Metrics",
    "ReliabilityBins",
    "accuracy",
    "adaptive_calibration_error",
    "adaptive_ece_from_confidence",
    "bootstrap",
    "bootstrap_difference",
    "bootstrap_difference_from_confidence",
    "bootstrap_from_confidence",
    "brier_score",
    "classwise_calibration_error",
    "confidence_and_correct",
    "ece_from_confidence",
    "evaluate",
    "expected_calibration_error",
    "maximum_calibration_error",
    "mce_from_confidence",
    "mean_entropy",
    "negative_log_likelihood",
    "overconfidence",
    "percent",
    "reliability_bins",
    "reliability_bins_from_confidence",
]
