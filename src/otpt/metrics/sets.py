"""Prediction sets and abstention on labelled images, with exact binomial (Clopper–Pearson) intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy import special

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.metrics.inputs import Values, check_flags, check_numbers


@dataclass(frozen=True)
class SetMetrics:
    """Coverage and size of prediction sets, and risk of selective prediction; None where they do not apply.

    Attributes:
        coverage: fraction of images whose set holds the label; coverage_interval: 95 % Clopper–Pearson.
        set_size: mean number of classes in a set; singletons: fraction of sets with one class.
        answered: fraction of answered images.
        risk: fraction of errors among them, or None; risk_interval: 95 % Clopper–Pearson.
    """

    coverage: float | None = None
    coverage_interval: tuple[float, float] | None = None
    set_size: float | None = None
    singletons: float | None = None
    answered: float | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, float | list[float]]:
        """Return plain data without missing values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }


@checked
def set_metrics(
    correct: Values,
    *,
    covered: Values | None = None,
    sizes: Values | None = None,
    answered: Values | None = None,
) -> SetMetrics:
    """Compute set metrics from (N,) arrays: correct flags, coverage flags and sizes of sets, answered flags.

    >>> set_metrics(np.array([True, False]), answered=np.array([True, False])).risk
    0.0
    """
    metrics = SetMetrics()
    right = check_flags("correct", correct)
    if covered is not None and sizes is not None:
        is_covered = check_flags("covered", covered, len(right))
        counts = check_numbers("sizes", sizes, len(right))
        hits = int(np.sum(is_covered))
        metrics = replace(
            metrics,
            coverage=hits / len(right),
            coverage_interval=clopper_pearson(hits, len(right)),
            set_size=float(np.mean(counts)),
            singletons=float(np.mean(counts == 1)),
        )
    if answered is not None:
        is_answered = check_flags("answered", answered, len(right))
        count = int(np.sum(is_answered))
        metrics = replace(metrics, answered=count / len(right))
        if count:
            wrong = int(np.sum(is_answered & ~right))
            metrics = replace(metrics, risk=wrong / count, risk_interval=clopper_pearson(wrong, count))
    return metrics


@checked
def lower_confidence_bound(successes: int, trials: int, alpha: float) -> float:
    """Return the Clopper–Pearson lower bound of a probability, the p with P[Bin(n, p) ≥ k] = α."""
    if not 0 <= successes <= trials or trials < 1:
        raise OtptError(
            f"Got {successes} successes in {trials} trials; expected trials >= 1 and no more successes than trials."
        )
    if not 0 < alpha < 1:
        raise OtptError(f"The error probability alpha is {alpha}; expected a number between 0 and 1.")
    return float(special.betaincinv(successes, trials - successes + 1, alpha)) if successes else 0.0


@checked
def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of a probability; each side has error probability at most (1 − level)/2.

    >>> [round(bound, 4) for bound in clopper_pearson(8, 10)]
    [0.4439, 0.9748]
    """
    alpha = (1.0 - level) / 2.0
    low = lower_confidence_bound(successes, trials, alpha)
    return low, 1.0 - lower_confidence_bound(trials - successes, trials, alpha)
