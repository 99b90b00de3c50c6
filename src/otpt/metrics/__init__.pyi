from .binning import ReliabilityBins, reliability_bins, reliability_bins_from_confidence
from .calibration_error import (
    adaptive_calibration_error,
    adaptive_ece_from_confidence,
    classwise_calibration_error,
    ece_from_confidence,
    expected_calibration_error,
    maximum_calibration_error,
    mce_from_confidence,
)
from .resampling import (
    Interval,
    bootstrap,
    bootstrap_difference,
    bootstrap_difference_from_confidence,
    bootstrap_from_confidence,
)
from .scores import (
    NLL_FLOOR,
    accuracy,
    brier_score,
    confidence_and_correct,
    mean_entropy,
    negative_log_likelihood,
    overconfidence,
)
from .summary import Metrics, evaluate, percent

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
