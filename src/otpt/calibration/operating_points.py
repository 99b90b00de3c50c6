"""Operating points on labelled images: the confidence thresholds for requested error rates, guaranteed and empirical.

With confidences s_n, correct flags c_n and a risk r, the **empirical** threshold is the lowest t with

    #{s_n > t, not c_n} ≤ r·#{s_n > t},

the largest share that can be answered on these images. It is chosen on the labels that it is judged by, so new images
have more errors. The **guaranteed** one is that of :func:`otpt.calibration.risk_threshold`: at most a fraction r of the
answered new images is wrong, with a probability over the draw of the labelled images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otpt.arguments import checked
from otpt.calibration.arrays import Booleans, Floats
from otpt.calibration.conformal import check_fraction, find_threshold
from otpt.errors import OtptError
from otpt.metrics import clopper_pearson
from otpt.metrics.inputs import Values, check_confidence

RISKS = (0.01, 0.02, 0.05, 0.1)
"""Error rates for which operating points are shown by default."""
_LEAST_DIGITS = 4


@dataclass(frozen=True)
class Point:
    """A confidence threshold and the labelled images above it.

    Attributes:
        threshold: images with a higher confidence are answered; −∞ answers all.
        shown: the threshold rounded up to the fewest digits, four or more, that select the same images.
        answered: number of labelled images above the threshold.
        wrong: number of errors among them.
        labels: number of labelled images.
    """

    threshold: float
    shown: str
    answered: int
    wrong: int
    labels: int

    @property
    def share(self) -> float:
        """Fraction of the labelled images that is answered."""
        return self.answered / self.labels

    @property
    def error(self) -> float:
        """Fraction of errors among the answered images."""
        return self.wrong / self.answered

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the Clopper–Pearson interval of the fraction of errors."""
        return clopper_pearson(self.wrong, self.answered, level)


@dataclass(frozen=True)
class OperatingPoint:
    """The thresholds for a risk.

    Attributes:
        risk: requested fraction of errors among the answered images.
        guarantee: probability of the guarantee.
        guaranteed: threshold that bounds the risk on new images, or None if there are too few labels.
        empirical: lowest threshold that bounds the risk on the labelled images, or None if there is none.
    """

    risk: float
    guarantee: float
    guaranteed: Point | None
    empirical: Point | None


@checked
def operating_points(
    confidence: Values, correct: Values, *, risks: Sequence[float] = RISKS, guarantee: float = 0.95
) -> list[OperatingPoint]:
    """Return the guaranteed and the empirical threshold of each risk.

    Args:
        confidence: confidences (N,) of labelled images.
        correct: whether each prediction is correct (N,).
        risks: fractions of errors among the answered images.
        guarantee: probability, over the draw of the labelled images, with which the guaranteed thresholds hold.

    Returns:
        An operating point for each risk.

    Example:
        >>> (point,) = operating_points([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], risks=[0.1])
        >>> point.empirical.shown, point.empirical.share, point.guaranteed
        ('0.7000', 0.5, None)
    """
    risks = list(risks)  # of an array, too
    if not risks:
        raise OtptError("No risk was given; expected one or more, such as 0.05.")
    rows = check_confidence(confidence, correct)
    confidences, flags = np.asarray(rows.confidences, np.float64), np.asarray(rows.correct, np.bool_)
    if not len(flags):
        raise OtptError("There are no labelled images; expected one or more.")
    points = []
    for risk in risks:
        threshold = find_threshold(confidences, flags, risk=risk, guarantee=guarantee)
        guaranteed = None if threshold is None else _point(threshold.threshold, confidences, flags)
        points.append(OperatingPoint(risk, guarantee, guaranteed, empirical_point(confidences, flags, risk=risk)))
    return points


def empirical_point(confidence: Floats, correct: Booleans, *, risk: float) -> Point | None:
    """Return the lowest threshold with at most a fraction ``risk`` of errors above it, or None if there is none."""
    check_fraction("risk", risk, such_as="0.05")
    order = np.argsort(-confidence, kind="stable")
    falling, wrong = confidence[order], np.cumsum(~correct[order])
    answered = np.arange(1, len(falling) + 1)
    is_last = np.append(falling[1:] != falling[:-1], True)  # of equal confidences
    allowed = np.flatnonzero(is_last & (wrong <= np.round(risk * answered, 9)))
    if not len(allowed):
        return None
    count = int(answered[allowed[-1]])
    return _point(float(falling[count]) if count < len(falling) else -math.inf, confidence, correct)


def least_risk(confidence: Floats, correct: Booleans, *, guarantee: float = 0.95) -> float | None:
    """Return the smallest whole percentage that can be guaranteed as a risk, or None."""
    risks = (percent / 100 for percent in range(1, 100))
    return next((r for r in risks if find_threshold(confidence, correct, risk=r, guarantee=guarantee)), None)


def _point(threshold: float, confidence: Floats, correct: Booleans) -> Point:
    above = confidence > threshold
    return Point(
        threshold=threshold,
        shown=shown_threshold(threshold, confidence),
        answered=int(above.sum()),
        wrong=int((above & ~correct).sum()),
        labels=len(correct),
    )


def shown_threshold(threshold: float, confidence: Floats) -> str:
    """Round a threshold up to the fewest digits, four or more, that select the same images.

    >>> shown_threshold(0.812345, np.array([0.8123456, 0.9]))
    '0.812345'
    >>> shown_threshold(0.812345, np.array([0.8125, 0.9]))
    '0.8124'
    """
    if math.isinf(threshold):
        return "0"
    count = int((confidence > threshold).sum())
    for digits in range(_LEAST_DIGITS, 17):
        text = f"{math.ceil(threshold * 10**digits) / 10**digits:.{digits}f}"
        if int((confidence > float(text)).sum()) == count:
            return text
    return repr(threshold)
