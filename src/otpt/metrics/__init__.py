"""Metrics of predictions: pure functions of (probabilities, labels), or of (confidence, correct).

Inputs are numpy arrays, torch tensors or lists. Probabilities have shape (N, C) and labels (N,); where the confidence
suffices, (N,) confidences and (N,) correct flags may be passed instead. Values are Python floats; fractions lie between
0 and 1: ``percent`` and ``Metrics.as_percent`` format them as published tables do. :data:`METRICS` is the table of all
metrics with their titles, directions, units, ranges and aliases.

:class:`RunningMetric` wraps any of them for torchmetrics, whose names and arguments differ:

| torchmetrics | here | why |
|---|---|---|
| ``MulticlassCalibrationError(num_classes, n_bins=15, norm="l1")`` | ``ece(p, y, n_bins=20)`` | 20 bins (lo, hi] with \
float32 edges, as in the papers; ``num_classes`` is the number of columns |
| ``norm="max"`` | ``mce`` | a function for each metric |
| ``norm="l2"`` | – | no paper of the field reports it |
| ``MulticlassAccuracy(average="micro", top_k=5)`` | ``accuracy(p, y, top=5)`` | the mean over images; theirs is over \
classes by default |
| ``MulticlassF1Score(average="macro")`` | ``macro_f1(p, y)`` | classes without an image are left out |
| ``ignore_index``, ``validate_args`` | – | drop the rows; inputs are always validated |
| ``preds`` may be logits | ``RunningMetric("ece", logits=True)`` | probabilities are not guessed from their range |
"""

from otpt.metrics.binned import (
    ReliabilityBins,
    adaptive_calibration_error,
    classwise_adaptive_calibration_error,
    classwise_calibration_error,
    debiased_ece,
    expected_calibration_error,
    ks_calibration_error,
    maximum_calibration_error,
    reliability_bins,
    smooth_ece,
)
from otpt.metrics.bootstrap import Interval, bootstrap, bootstrap_difference
from otpt.metrics.running import RunningMetric
from otpt.metrics.scores import (
    accuracy,
    brier_score,
    confidence_and_correct,
    macro_f1,
    mean_confidence,
    mean_entropy,
    negative_log_likelihood,
    overconfidence,
    top5_accuracy,
    top_label_brier_score,
)
from otpt.metrics.selective import (
    accuracy_above,
    aurc,
    coverage_at_risk,
    excess_aurc,
    fpr95,
    misclassification_auroc,
    selective_accuracy,
)
from otpt.metrics.sets import SetMetrics, clopper_pearson, lower_confidence_bound, set_metrics
from otpt.metrics.table import METRICS, NLL_FLOOR, Metric, Metrics, evaluate, evaluate_rows, get_metric, percent

ece = expected_calibration_error
adaptive_ece = adaptive_calibration_error
classwise_ece = sce = classwise_calibration_error
classwise_adaptive_ece = classwise_adaptive_calibration_error
mce = maximum_calibration_error
nll = negative_log_likelihood

__all__ = [
    "METRICS",
    "NLL_FLOOR",
    "Interval",
    "Metric",
    "Metrics",
    "ReliabilityBins",
    "RunningMetric",
    "SetMetrics",
    "accuracy",
    "accuracy_above",
    "adaptive_calibration_error",
    "adaptive_ece",
    "aurc",
    "bootstrap",
    "bootstrap_difference",
    "brier_score",
    "classwise_adaptive_calibration_error",
    "classwise_adaptive_ece",
    "classwise_calibration_error",
    "classwise_ece",
    "clopper_pearson",
    "confidence_and_correct",
    "coverage_at_risk",
    "debiased_ece",
    "ece",
    "evaluate",
    "evaluate_rows",
    "excess_aurc",
    "expected_calibration_error",
    "fpr95",
    "get_metric",
    "ks_calibration_error",
    "lower_confidence_bound",
    "macro_f1",
    "maximum_calibration_error",
    "mce",
    "mean_confidence",
    "mean_entropy",
    "misclassification_auroc",
    "negative_log_likelihood",
    "nll",
    "overconfidence",
    "percent",
    "reliability_bins",
    "sce",
    "selective_accuracy",
    "set_metrics",
    "smooth_ece",
    "top5_accuracy",
    "top_label_brier_score",
]


def __dir__() -> list[str]:
    return __all__
