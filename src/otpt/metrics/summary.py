"""All metrics of one set of predictions in one object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from otpt.metrics.inputs import DenseRows, Values, check_bins, check_probabilities
from otpt.metrics.scores import NLL_FLOOR
from otpt.metrics.table import METRICS


@dataclass(frozen=True)
class Metrics:
    """Every metric of N predictions over C classes. Fractions are between 0 and 1, not percent."""

    images: int
    classes: int
    accuracy: float
    top5_accuracy: float
    macro_f1: float
    ece: float
    debiased_ece: float
    """ECE minus that of a calibrated model with the same confidences; may be negative."""
    smooth_ece: float
    adaptive_ece: float
    ks_error: float
    mce: float
    sce: float
    """Class-wise ECE."""
    brier: float
    """In [0, 2]."""
    top_label_brier: float
    """In [0, 1]."""
    nll: float
    """In nats."""
    confidence: float
    """Mean confidence."""
    overconfidence: float
    """Mean confidence minus accuracy."""
    entropy: float
    """In nats."""
    aurc: float
    excess_aurc: float
    auroc: float | None
    """Of correct against wrong predictions; None if all are correct, or all wrong."""
    fpr95: float | None
    """None as ``auroc``."""
    selective_accuracy: float
    """Of the most confident 80 %."""
    coverage_at_risk: float
    """Largest fraction that can be answered with at most 5 % errors."""
    n_bins: int
    """Number of bins of ECE, debiased ECE, adaptive ECE, MCE and SCE."""
    side: str
    """"right" for bins (lo, hi], "left" for [lo, hi)."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name, as for JSON."""
        return asdict(self)

    def as_percent(self, digits: int = 2) -> dict[str, str]:
        """Print the metrics as published tables do; see :meth:`otpt.metrics.Metric.format`."""
        values = self.as_dict()
        return {name: METRICS[name].format(values[name], digits) for name in values if name in METRICS}


def evaluate(
    probabilities: Values, labels: Values, *, n_bins: int = 20, side: str = "right", floor: float = NLL_FLOOR
) -> Metrics:
    """Compute every metric of probabilities (N, C) and labels (N,); ``floor`` is that of the NLL.

    >>> evaluate([[0.9, 0.1], [0.8, 0.2]], [0, 1]).as_percent()["ece"]
    '45.00'
    """
    return evaluate_rows(DenseRows(*check_probabilities(probabilities, labels)), n_bins=n_bins, side=side, floor=floor)


def evaluate_rows(rows: Any, *, n_bins: int = 20, side: str = "right", floor: float = NLL_FLOOR) -> Metrics:
    """Compute every metric of :class:`~otpt.metrics.inputs.Rows`, such as those a run stores."""
    check_bins(n_bins, side)
    values: dict[str, Any] = {}
    for name, metric in METRICS.items():
        if metric.needs != "probabilities":
            value = metric.value(rows, n_bins=n_bins, side=side, floor=floor)
            values[name] = None if np.isnan(value) else value
    classes = rows.p.shape[1] if isinstance(rows, DenseRows) else len(rows.class_sums)
    return Metrics(images=len(rows.labels), classes=classes, **values, n_bins=int(n_bins), side=side)
