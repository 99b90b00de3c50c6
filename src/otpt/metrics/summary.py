"""All metrics of one run in one object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from otpt.metrics._inputs import check_bins, check_probabilities, of_all
from otpt.metrics._weighted import further_values
from otpt.metrics.calibration.calibration_error import adaptive_ece, ece, mce
from otpt.metrics.calibration.classwise import sce
from otpt.metrics.f1 import macro_f1_statistic
from otpt.metrics.scores import (
    NLL_FLOOR,
    brier_values,
    check_floor,
    confident,
    entropy_values,
    hits,
    nll_values,
    top_label_brier_values,
)

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values

_IN_OWN_UNIT = ("brier", "top_label_brier", "nll", "entropy")
_CONDITIONS = ("images", "classes", "bins", "side")


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
    """Of right against wrong predictions; None if all are right, or all wrong."""
    fpr95: float | None
    """None as ``auroc``."""
    selective_accuracy: float
    """Of the surest 80 %."""
    coverage_at_risk: float
    """Fraction that can be answered with at most 5 % wrong."""
    bins: int
    """Number of bins of ECE, debiased ECE, adaptive ECE, MCE and SCE."""
    side: str
    """"right" for bins (lo, hi], "left" for [lo, hi)."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name, as for JSON."""
        return asdict(self)

    def as_percent(self, digits: int = 2) -> dict[str, str]:
        """As published tables print them: fractions times 100; Brier scores, NLL and entropy as they are.

        A metric that is not defined is "–".
        """
        values = self.as_dict()
        names = [name for name in values if name not in (*_IN_OWN_UNIT, *_CONDITIONS)]
        fractions = {name: "–" if values[name] is None else percent(values[name], digits) for name in names}
        return fractions | {name: f"{values[name]:.{digits + 2}f}" for name in _IN_OWN_UNIT}


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction as a percentage without its sign.

    >>> percent(0.0477)
    '4.77'
    """
    text = f"{100.0 * fraction:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text  # no "-0.00"


def evaluate(
    probabilities: Values,
    labels: Values,
    *,
    bins: int = 20,
    side: str = "right",
    floor: float = NLL_FLOOR,
) -> Metrics:
    """Every metric of probabilities (N, C) and labels (N,); ``floor`` is that of the NLL.

    >>> evaluate([[0.9, 0.1], [0.8, 0.2]], [0, 1]).as_percent()["ece"]
    '45.00'
    """
    check_bins(bins, side)
    check_floor(floor)
    p, y = check_probabilities(probabilities, labels)
    confidence, correct = confident(p, y)
    return Metrics(
        images=p.shape[0],
        classes=p.shape[1],
        accuracy=float(correct.mean()),
        top5_accuracy=float(hits(p, y, 5).mean()),
        ece=ece(confidence, correct, bins, side),
        adaptive_ece=adaptive_ece(confidence, correct, bins),
        mce=mce(confidence, correct, bins, side),
        sce=sce(p, y, bins, side),
        macro_f1=of_all(macro_f1_statistic(p.argmax(axis=1), y), len(y)),
        brier=float(brier_values(p, y).mean()),
        top_label_brier=float(top_label_brier_values(confidence, correct).mean()),
        nll=float(nll_values(p, y, floor).mean()),
        confidence=float(confidence.mean()),
        overconfidence=float(np.mean(confidence - correct)),
        entropy=float(entropy_values(p).mean()),
        **further_values(confidence, correct, bins, side),
        bins=int(bins),
        side=side,
    )
