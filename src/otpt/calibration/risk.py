"""The confidence above which at most a given fraction of the answers is wrong, with a stated probability.

Of n labelled images sorted by confidence, the m most confident ones are images drawn from those above the (m + 1)-th
confidence t, so the number of errors among them is binomial, whatever t is. With R(t) the error rate above t,

    p_m = P[Bin(m, r) ≤ errors among the m]        is a p-value of "R(t) > r".

Thresholds that answer 5 %, 10 %, …, 100 % of the labelled images are tested from the strictest on by the fallback
procedure: each has an equal part of 1 − guarantee, and one that is rejected hands its part on to the next. All rejected
hypotheses are false together with probability ``guarantee``; the threshold that answers most of them is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from otpt.calibration.maps import Booleans, Floats
from otpt.calibration.sets import check_fraction
from otpt.errors import OtptError

LEVELS = 20


@dataclass(frozen=True)
class RiskThreshold:
    """Images with a confidence above ``threshold`` are answered.

    Attributes:
        risk, guarantee: the error rate among the answered is at most ``risk``, with this probability over the draw of
            the labelled images.
        labels: n; answered, wrong: how many of them are above the threshold, and how many of these are wrong.
    """

    threshold: float
    risk: float
    guarantee: float
    labels: int
    answered: int
    wrong: int

    def answers(self, confidence: float) -> bool:
        """Whether an image of this confidence is answered."""
        return confidence > self.threshold


def risk_threshold(confidence: Floats, correct: Booleans, *, risk: float, guarantee: float = 0.95) -> RiskThreshold:
    """The lowest threshold that holds the risk, from confidences and correct flags (N,); an error if none does."""
    found = find_threshold(confidence, correct, risk=risk, guarantee=guarantee)
    if found is not None:
        return found
    n, wrong = len(correct), int((~correct).sum())
    grid = (step / 100 for step in range(math.floor(100 * risk) + 1, 100))
    possible = next(
        (each for each in grid if find_threshold(confidence, correct, risk=each, guarantee=guarantee)), None
    )
    allowed = "" if possible is None else f", or allow {possible:g}, which they can hold"
    raise OtptError(
        f"No confidence threshold holds a risk of {risk:g} with probability {guarantee:g} on the {n} labels of the "
        f"calibration, of which {wrong} are predicted wrong; label more images{allowed}."
    )


def find_threshold(
    confidence: Floats, correct: Booleans, *, risk: float, guarantee: float = 0.95
) -> RiskThreshold | None:
    """The same; None if no threshold holds the risk."""
    check_fraction("risk", risk, such_as="0.05")
    check_fraction("guarantee", guarantee, such_as="0.95")
    n, budget = len(correct), 1.0 - guarantee
    order = np.argsort(-confidence, kind="stable")
    sure, errors = confidence[order], np.concatenate([[0], np.cumsum(~correct[order])])
    counts = sorted({math.ceil(n * level / LEVELS) for level in range(1, LEVELS + 1)})
    tested = [m for m in counts if (1.0 - risk) ** m <= budget]  # fewer could not pass even without an error
    found, carried = None, 0.0
    for m in tested:
        threshold = float(sure[m]) if m < n else -math.inf
        answered = int(np.searchsorted(-sure, -threshold)) if m < n else n  # of equal confidences none is above
        level = budget / len(tested) + carried
        wrong = int(errors[answered])
        passed = answered > 0 and special.bdtr(wrong, answered, risk) <= level
        carried = level if passed else 0.0
        if passed:
            found = RiskThreshold(threshold, risk, guarantee, n, answered, wrong)
    return found
