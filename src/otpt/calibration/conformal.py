"""Guarantees from labelled images: split conformal prediction sets, and a confidence threshold that bounds a risk.

**Sets.** With q̂ the ⌈(n + 1)·coverage⌉-th smallest of the scores s(x, y) of n labelled images, a new image exchangeable
with them has P(s(x, y) ≤ q̂) ≥ coverage: its score is equally likely to take any of the n + 1 ranks.

**Risk.** Of n labelled images sorted by confidence, the m most confident ones are images drawn from those above the
(m + 1)-th confidence t, so the number of errors among them is binomial, whatever t is. With the error rate R(t) above t

    p_m = P[Bin(m, r) ≤ errors among the m]        is a p-value of "R(t) > r".

Thresholds that answer 5 %, 10 %, …, 100 % of the labelled images are tested from the strictest on by the fallback
procedure: each has an equal part of 1 − guarantee, and one that is rejected hands its part on to the next. All rejected
hypotheses are false together with probability ``guarantee``; the lowest threshold among them is taken.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special

from otpt.arguments import checked
from otpt.calibration.arrays import Booleans, Floats
from otpt.errors import OtptError, unknown
from otpt.metrics.inputs import Values, check_confidence

SETS = ("lac", "aps", "raps")

PENALTY, FREE_RANKS = 0.01, 5
"""Default λ and k of RAPS, from its experiments on ImageNet."""

LEVELS = 20
"""Number of thresholds tested for a risk."""

_LEAST_DIGITS = 4


def conformal_scores(
    kind: str,
    probabilities: Floats,
    *,
    penalty: float = PENALTY,
    free_ranks: float = FREE_RANKS,
    u: Floats | None = None,
) -> Floats:
    """Compute the scores s(x, c) of all classes: (N, C) → (N, C); ``u`` (N,) defaults to :func:`draws`.

    - "lac" (least ambiguous sets): 1 − p_c, the smallest sets on average.
    - "aps" (adaptive prediction sets): Σ p_j over the more probable classes + u·p_c; sets hold the most probable
      classes until their sum reaches q̂. Tied classes keep their order. Without u, confident images would score near 1
      whether correct or wrong, and all sets would grow.
    - "raps" (regularised APS): APS + λ·max(0, rank(c) − k), so that no set is very large.
    """
    if kind not in SETS:
        raise unknown("kind of prediction sets", kind, SETS)
    if kind == "lac":
        return 1.0 - probabilities
    u = draws(probabilities) if u is None else u
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, axis=1)
    scores = np.cumsum(ordered, axis=1) - ordered + u[:, None] * ordered
    if kind == "raps":
        scores += penalty * np.maximum(0, np.arange(1, scores.shape[1] + 1) - free_ranks)
    of_classes = np.empty_like(probabilities)
    np.put_along_axis(of_classes, order, scores, axis=1)
    return of_classes


def draws(probabilities: Floats) -> Floats:
    """Hash the predicted class and the two largest probabilities to u in [0, 1): (N, C) → (N,).

    An image therefore always has the same set. Probabilities are rounded to three digits to be independent of the
    processor. Any function of the image preserves the coverage.
    """
    first = probabilities.argmax(axis=1)
    largest = np.sort(probabilities, axis=1)[:, -2:]
    keys = (f"otpt aps 1/{c}/{a:.3f}/{b:.3f}" for c, (b, a) in zip(first.tolist(), largest.tolist(), strict=True))
    return np.array([int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2.0**48 for key in keys])


def conformal_quantile(scores: Floats, coverage: float) -> float:
    """Return q̂ of n scores (n,), or infinity if n is too small.

    >>> conformal_quantile(np.arange(1.0, 10.0), 0.9), conformal_quantile(np.arange(1.0, 9.0), 0.9)
    (9.0, inf)
    """
    rank = math.ceil((len(scores) + 1) * _exact(coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def labels_for(coverage: float) -> int:
    """Return the smallest number of labels with a finite quantile.

    >>> labels_for(0.9), labels_for(0.95), labels_for(0.99)
    (9, 19, 99)
    """
    fraction = _exact(coverage)
    return math.ceil(fraction / (1 - fraction))


def _exact(coverage: float) -> Fraction:
    """Convert the coverage to an exact decimal fraction."""
    check_fraction("coverage", coverage, such_as="0.9")
    return Fraction(str(float(coverage)))


def check_fraction(name: str, value: object, *, such_as: str) -> None:
    """Raise unless ``value`` is a number strictly between 0 and 1."""
    if not isinstance(value, int | float | np.number) or not 0.0 < value < 1.0:
        raise OtptError(f"expected {name} between 0 and 1, both excluded, but got {value!r}; such as {such_as}.")


@dataclass(frozen=True)
class RiskThreshold:
    """Confidence threshold above which images are answered.

    Attributes:
        risk, guarantee: the error rate among the answered is at most ``risk``, with this probability over the draw of
            the labelled images.
        labels: n; answered, wrong: number of labelled images above the threshold, and of errors among them.
    """

    threshold: float
    risk: float
    guarantee: float
    labels: int
    answered: int
    wrong: int

    def answers(self, confidence: float) -> bool:
        """Return whether an image with this confidence is answered."""
        return confidence > self.threshold

    @property
    def shown(self) -> str:
        """The threshold rounded up to the fewest digits, four or more, that answer the same float32 confidences."""
        if math.isinf(self.threshold):
            return "0"
        higher = float(np.nextafter(np.float32(self.threshold), np.float32(np.inf)))
        for digits in range(_LEAST_DIGITS, 17):
            text = f"{math.ceil(self.threshold * 10**digits) / 10**digits:.{digits}f}"
            if float(text) < higher:
                return text
        return repr(self.threshold)


@checked
def risk_threshold(confidence: Values, correct: Values, *, risk: float, guarantee: float = 0.95) -> RiskThreshold:
    """Return the lowest threshold that bounds the risk, from confidences and correct flags (N,), or raise."""
    rows = check_confidence(confidence, correct)
    confidence, correct = rows.confidences, rows.correct
    threshold = find_threshold(confidence, correct, risk=risk, guarantee=guarantee)
    if threshold is not None:
        return threshold
    higher_risks = (step / 100 for step in range(math.floor(100 * risk) + 1, 100))
    possible = [r for r in higher_risks if find_threshold(confidence, correct, risk=r, guarantee=guarantee)]
    allowed = f", or request a risk of at least {possible[0]:g}" if possible else ""
    raise OtptError(
        f"No confidence threshold guarantees a risk of {risk:g} with probability {guarantee:g} for {len(correct)} "
        f"labels with {int((~correct).sum())} wrong predictions; label more images{allowed}."
    )


def find_threshold(
    confidence: Floats, correct: Booleans, *, risk: float, guarantee: float = 0.95
) -> RiskThreshold | None:
    """Return :func:`risk_threshold`, or None if no threshold bounds the risk."""
    check_fraction("risk", risk, such_as="0.05")
    check_fraction("guarantee", guarantee, such_as="0.95")
    n, budget = len(correct), 1.0 - guarantee
    order = np.argsort(-confidence, kind="stable")
    falling, errors = confidence[order], np.concatenate([[0], np.cumsum(~correct[order])])
    counts = sorted({math.ceil(n * level / LEVELS) for level in range(1, LEVELS + 1)})
    tested = [m for m in counts if (1.0 - risk) ** m <= budget]  # smaller counts cannot pass even without errors
    lowest, carried = None, 0.0
    for m in tested:
        threshold = float(falling[m]) if m < n else -math.inf
        answered = int(np.searchsorted(-falling, -threshold)) if m < n else n  # ties are not above it
        level = budget / len(tested) + carried
        wrong = int(errors[answered])
        passed = answered > 0 and special.bdtr(wrong, answered, risk) <= level
        carried = level if passed else 0.0
        if passed:
            lowest = RiskThreshold(threshold, risk, guarantee, n, answered, wrong)
    return lowest
