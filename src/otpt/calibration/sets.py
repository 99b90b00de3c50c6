"""Split conformal prediction: sets of classes that hold the true one with a chosen probability.

With q̂ the ⌈(n + 1)·coverage⌉-th smallest of the scores s(x, y) of n labelled images, a new image exchangeable with them
has P(s(x, y) ≤ q̂) ≥ coverage: its score is equally likely to take any of the n + 1 ranks.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np

from otpt.calibration.maps import Floats, Integers
from otpt.errors import OtptError, unknown

SETS = ("lac", "aps", "raps")

PENALTY, FREE_RANKS = 0.01, 5
"""λ and k of RAPS in the paper's experiments on ImageNet."""


def conformal_scores(
    kind: str, probabilities: Floats, *, penalty: float = PENALTY, free_ranks: int = FREE_RANKS
) -> Floats:
    """s(x, c) of every class, of the sets "lac", "aps" or "raps": (N, C) → (N, C)."""
    if kind == "lac":
        return lac_scores(probabilities)
    if kind == "aps":
        return aps_scores(probabilities, draws(probabilities))
    if kind == "raps":
        return raps_scores(probabilities, draws(probabilities), penalty=penalty, free_ranks=free_ranks)
    raise unknown("kind of prediction sets", kind, SETS)


def lac_scores(probabilities: Floats) -> Floats:
    """LAC (least ambiguous sets): s(x, c) = 1 − p_c, the smallest sets on average: (N, C) → (N, C)."""
    return 1.0 - probabilities


def aps_scores(probabilities: Floats, draws: Floats) -> Floats:
    """APS (adaptive prediction sets): the most probable classes until their sum reaches q̂: (N, C) → (N, C).

    s(x, c) = Σ p_j over the classes before c + u·p_c, with u = ``draws`` (N,) in [0, 1). Of tied classes the one listed
    first comes before. u makes the score continuous where p is near 0 or 1; without it, confident images would have
    scores near 1 whether correct or wrong, and all sets would grow.
    """
    order, _ = _ranking(probabilities)
    ordered = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    scores = np.empty_like(probabilities)
    np.put_along_axis(scores, order, before + draws[:, None] * ordered, axis=1)
    return scores


def raps_scores(
    probabilities: Floats, draws: Floats, *, penalty: float = PENALTY, free_ranks: int = FREE_RANKS
) -> Floats:
    """RAPS (regularised APS): APS + λ·max(0, rank(c) − k), so that no set is very large: (N, C) → (N, C)."""
    _, ranks = _ranking(probabilities)
    return aps_scores(probabilities, draws) + penalty * np.maximum(0, ranks - free_ranks)


def _ranking(probabilities: Floats) -> tuple[Integers, Integers]:
    """Classes from the most probable on, and the rank 1 … C of each class: (N, C) each."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None, :], axis=1)
    return order, ranks


def draws(probabilities: Floats) -> Floats:
    """u in [0, 1) of each image, hashed from its predicted class and its two largest probabilities: (N, C) → (N,).

    So an image has the same set whenever and wherever it is predicted. The probabilities are rounded to three digits,
    so that the last ones, in which processors differ, do not matter. Any function of the image preserves the coverage.
    """
    first = probabilities.argmax(axis=1)
    largest = np.sort(probabilities, axis=1)[:, -2:]
    keys = (f"otpt aps 1/{c}/{a:.3f}/{b:.3f}" for c, (b, a) in zip(first.tolist(), largest.tolist(), strict=True))
    return np.array([int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2.0**48 for key in keys])


def conformal_quantile(scores: Floats, coverage: float) -> float:
    """q̂ of n scores (n,); infinity, which every class is below, where n is too small.

    >>> conformal_quantile(np.arange(1.0, 10.0), 0.9), conformal_quantile(np.arange(1.0, 9.0), 0.9)
    (9.0, inf)
    """
    rank = math.ceil((len(scores) + 1) * _exact(coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def labels_for(coverage: float) -> int:
    """Smallest number of labels with a finite quantile.

    >>> labels_for(0.9), labels_for(0.95), labels_for(0.99)
    (9, 19, 99)
    """
    fraction = _exact(coverage)
    return math.ceil(fraction / (1 - fraction))


def _exact(coverage: float) -> Fraction:
    """The decimal number 0.9, not the binary one next to it."""
    check_fraction("coverage", coverage, such_as="0.9")
    return Fraction(str(float(coverage)))


def check_fraction(name: str, value: Any, *, such_as: str) -> None:
    """Raise unless ``value`` is a number strictly between 0 and 1."""
    if not isinstance(value, int | float | np.number) or not 0.0 < value < 1.0:
        raise OtptError(f"expected {name} between 0 and 1, both excluded, but got {value!r}; such as {such_as}.")
