"""Scores that are a mean of one number per image: accuracy, Brier, NLL, entropy, over-confidence.

They take probabilities (N, C) and labels (N,), as numpy arrays or torch tensors, and return a Python float: a
fraction between 0 and 1 or a number in its natural unit, never a percentage. Sums are in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics._inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    check_confidence,
    check_count,
    check_probabilities,
    row_chunks,
)

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values

NLL_FLOOR = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, 1.18e-38: the softmax of float32 logits has no digits left below it."""


def confidence_and_correct(probabilities: Values, labels: Values) -> tuple[FloatArray, BoolArray]:
    """Confidence max_c p_c and whether argmax_c p_c is the label, both (N,); of tied classes, the first.

    >>> confidence_and_correct([[0.7, 0.3], [0.4, 0.6]], [0, 0])
    (array([0.7, 0.6]), array([ True, False]))
    """
    return confident(*check_probabilities(probabilities, labels))


def accuracy(probabilities: Values, labels: Values, *, top: int = 1) -> float:
    """Fraction of images whose label is among the ``top`` most probable classes, in [0, 1].

    Of tied classes the one listed first ranks higher. With no more than ``top`` classes it is 1.

    >>> accuracy([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]], [0, 1], top=1)
    0.5
    """
    check_count("top", top)
    return float(hits(*check_probabilities(probabilities, labels), top).mean())


def brier_score(probabilities: Values, labels: Values) -> float:
    """Brier score (1/N) Σ_n Σ_c (p_nc − [y_n = c])², summed over the classes as Brier did, so in [0, 2].

    >>> round(brier_score([[0.8, 0.2], [0.5, 0.5]], [0, 1]), 12)
    0.29
    """
    return float(brier_values(*check_probabilities(probabilities, labels)).mean())


def top_label_brier_score(confidence: Values, correct: Values) -> float:
    """Top-label Brier score (1/N) Σ_n (conf_n − correct_n)², in [0, 1], from confidence (N,) and correct (N,).

    >>> round(top_label_brier_score([0.8, 0.5], [1, 0]), 12)
    0.145
    """
    return float(top_label_brier_values(*check_confidence(confidence, correct)).mean())


def negative_log_likelihood(probabilities: Values, labels: Values, *, floor: float = NLL_FLOOR) -> float:
    """Negative log-likelihood −(1/N) Σ_n log max(p_n,y_n, floor), natural logarithm.

    The floor keeps a probability that was rounded to zero from making the mean infinite. The default lets an
    image cost 87.3 at most; for probabilities rounded to float16 the smallest positive float16, ``2**-24``,
    is a fairer one.

    >>> round(negative_log_likelihood([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    check_floor(floor)
    return float(nll_values(*check_probabilities(probabilities, labels), floor).mean())


def overconfidence(probabilities: Values, labels: Values) -> float:
    """Mean confidence minus accuracy, in [−1, 1]: positive for an over-confident model.

    >>> round(overconfidence([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 12)
    0.35
    """
    confidence, correct = confidence_and_correct(probabilities, labels)
    return float(np.mean(confidence - correct))


def mean_entropy(probabilities: Values, labels: Values) -> float:
    """Mean entropy −(1/N) Σ_n Σ_c p_nc log p_nc in nats, in [0, log C], with 0·log 0 = 0.

    The labels are only checked; they are a parameter so that all metrics have the same signature.

    >>> round(mean_entropy([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    return float(entropy_values(check_probabilities(probabilities, labels)[0]).mean())


def confident(p: npt.NDArray[Any], y: IntArray) -> tuple[FloatArray, BoolArray]:
    """``confidence_and_correct`` of checked input; a maximum that rounding left above one counts as one."""
    return np.minimum(p.max(axis=1).astype(np.float64), 1.0), p.argmax(axis=1) == y


def hits(p: npt.NDArray[Any], y: IntArray, top: int) -> FloatArray:
    """(N,) ones where fewer than ``top`` classes rank before the label."""
    before = np.arange(p.shape[1])[None, :] < y[:, None]
    of_label = np.take_along_axis(p, y[:, None], axis=1)
    rank = ((p > of_label) | ((p == of_label) & before)).sum(axis=1)
    return np.asarray(rank < top, dtype=np.float64)


def brier_values(p: npt.NDArray[Any], y: IntArray) -> FloatArray:
    """(N,) Brier scores, from Σ_c (p_c − [y = c])² = Σ_c p_c² − 2 p_y + 1."""
    squares = np.concatenate([np.square(rows).sum(axis=1) for _, rows in row_chunks(p)])
    return np.asarray(squares - 2.0 * _of_label(p, y) + 1.0, dtype=np.float64)


def top_label_brier_values(confidence: FloatArray, correct: BoolArray) -> FloatArray:
    """(N,) squared gaps of checked input."""
    return np.asarray(np.square(confidence - correct))


def nll_values(p: npt.NDArray[Any], y: IntArray, floor: float) -> FloatArray:
    """(N,) negative log-likelihoods."""
    # a probability rounded above one would give a negative likelihood
    return np.asarray(-np.log(np.clip(_of_label(p, y), floor, 1.0)), dtype=np.float64) + 0.0


def entropy_values(p: npt.NDArray[Any]) -> FloatArray:
    """(N,) entropies in nats; a maximum above one (rounding) cannot make one negative."""
    parts = [-(rows * np.log(rows, out=np.zeros_like(rows), where=rows > 0)).sum(axis=1) for _, rows in row_chunks(p)]
    return np.asarray(np.maximum(np.concatenate(parts), 0.0), dtype=np.float64)


def check_floor(floor: float) -> None:
    """Refuse a floor the logarithm cannot use."""
    if not 0.0 < floor < 1.0:
        raise OtptError(f"expected floor between 0 and 1, both excluded, but got {floor!r}.")


def _of_label(p: npt.NDArray[Any], y: IntArray) -> FloatArray:
    return np.take_along_axis(p, y[:, None], axis=1)[:, 0].astype(np.float64)
