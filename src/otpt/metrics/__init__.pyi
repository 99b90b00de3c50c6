from .binomial import clopper_pearson, lower_confidence_bound
from .calibration.binning import ReliabilityBins, reliability_bins, reliability_bins_from_confidence
from .calibration.calibration_error import (
    adaptive_calibration_error,
    adaptive_ece_from_confidence,
    classwise_calibration_error,
    ece_from_confidence,
    expected_calibration_error,
    maximum_calibration_error,
    mce_from_confidence,
)
from .calibration.classwise_adaptive import classwise_adaptive_calibration_error
from .calibration.debiased import debiased_ece
from .calibration.ks import ks_calibration_error
from .calibration.smooth import smooth_ece
from .f1 import macro_f1
from .ranking import fpr95, misclassification_auroc
from .resampling import (
    Interval,
    bootstrap,
    bootstrap_difference,
    bootstrap_difference_from_confidence,
    bootstrap_from_confidence,
)
from .running import RunningMetric
from .scores import (
    NLL_FLOOR,
    accuracy,
    brier_score,
    confidence_and_correct,
    mean_entropy,
    negative_log_likelihood,
    overconfidence,
    top_label_brier_score,
)
from .selective import accuracy_above, aurc, coverage_at_risk, excess_aurc, selective_accuracy
from .sets import SetMetrics, set_metrics
from .summary import Metrics, evaluate, percent

__all__ = [
    "NLL_FLOOR",
    "Interval",
    "Metrics",
    "ReliabilityBins",
    "RunningMetric",
    "SetMetrics",
    "accuracy",
    "accuracy_above",
    "adaptive_calibration_error",
    "adaptive_ece_from_confidence",
    "aurc",
    "bootstrap",
    "bootstrap_difference",
    "bootstrap_difference_from_confidence",
    "bootstrap_from_confidence",
    "brier_score",
    "classwise_adaptive_calibration_error",
    "classwise_calibration_error",
    "clopper_pearson",
    "confidence_and_correct",
    "coverage_at_risk",
    "debiased_ece",
    "ece_from_confidence",
    "evaluate",
    "excess_aurc",
    "expected_calibration_error",
    "fpr95",
    "ks_calibration_error",
    "lower_confidence_bound",
    "macro_f1",
    "maximum_calibration_error",
    "mce_from_confidence",
    "mean_entropy",
    "misclassification_auroc",
    "negative_log_likelihood",
    "overconfidence",
    "percent",
    "reliability_bins",
    "reliability_bins_from_confidence",
    "selective_accuracy",
    "set_metrics",
    "smooth_ece",
    "top_label_brier_score",
]
