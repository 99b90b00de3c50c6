"""Means of one number per image (accuracy, Brier score, NLL, entropy, over-confidence), and macro F1.

Values are fractions between 0 and 1 or numbers in their natural unit, never percentages. Sums are in float64.
"""

from __future__ import annotations

import numpy as np

from otpt.errors import OtptError
from otpt.metrics.inputs import (
    BoolArray,
    Classes,
    ConfidenceRows,
    Confidences,
    FloatArray,
    Rows,
    Values,
    check_count,
    sums_by,
)
from otpt.metrics.table import NLL_FLOOR, metric, rows_of


def confidence_and_correct(probabilities: Values, labels: Values) -> tuple[FloatArray, BoolArray]:
    """Return the confidence max_c p_c and whether argmax_c p_c is the label, both (N,); of tied classes, the first.

    >>> confidence_and_correct([[0.7, 0.3], [0.4, 0.6]], [0, 0])
    (array([0.7, 0.6]), array([ True, False]))
    """
    rows = rows_of(probabilities, labels, needs="rows", name="confidence_and_correct")
    return rows.confidences, rows.correct


def _mean(values: FloatArray | BoolArray, weights: FloatArray) -> FloatArray:
    return np.asarray((weights * values).sum(axis=1) / len(values))


@metric("accuracy", "accuracy", short="Acc.", best="higher")
def accuracy(rows: Rows | ConfidenceRows, weights: FloatArray, *, top: int = 1) -> FloatArray:
    """Fraction of images whose label is among the ``top`` most probable classes, in [0, 1].

    Of tied classes the one listed first ranks higher. With no more than ``top`` classes it is 1.

    >>> accuracy([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]], [0, 1], top=1)
    0.5
    """
    check_count("top", top)
    if top == 1:
        return _mean(rows.correct, weights)
    if isinstance(rows, ConfidenceRows):
        raise OtptError("an accuracy with top > 1 needs probabilities of shape (N, C) and labels.")
    return _mean(rows.ranks < top, weights)


@metric("top5_accuracy", "top-5", short="Top-5", best="higher", needs="rows")
def top5_accuracy(rows: Rows, weights: FloatArray) -> FloatArray:
    """Fraction of images whose label is among the five most probable classes, in [0, 1]."""
    return _mean(rows.ranks < 5, weights)


@metric("macro_f1", "macro F1", short="F1", best="higher", needs="classes")
def macro_f1(rows: Classes, weights: FloatArray) -> FloatArray:
    """Mean over classes of F1_c = 2·TP_c/(n_c + m_c), in [0, 1]; also of predicted classes (N,) and labels (N,).

    TP_c counts the correct predictions of class c, n_c its images, m_c the predictions of it. The mean is over the
    classes that have an image: one without has no recall.

    >>> round(macro_f1([0, 0, 1], [0, 1, 1]), 6)
    0.666667
    """
    classes, images = sums_by(rows.labels, weights)  # (R, classes with an image)
    _, hits = sums_by(rows.labels, weights * (rows.predictions == rows.labels))
    predicted, counts = sums_by(rows.predictions, weights)
    _, column, of_prediction = np.intersect1d(classes, predicted, assume_unique=True, return_indices=True)
    named = np.zeros_like(images)
    named[:, column] = counts[:, of_prediction]
    scores = 2.0 * hits / np.maximum(images + named, 1.0)
    drawn = images > 0
    return np.asarray(np.where(drawn, scores, 0.0).sum(axis=1) / drawn.sum(axis=1))


@metric("brier", "Brier", unit="", range=(0.0, 2.0), needs="rows")
def brier_score(rows: Rows, weights: FloatArray) -> FloatArray:
    """Brier score (1/N) Σ_n Σ_c (p_nc − [y_n = c])², summed over the classes as Brier did, so in [0, 2].

    >>> round(brier_score([[0.8, 0.2], [0.5, 0.5]], [0, 1]), 12)
    0.29
    """
    return _mean(rows.squares - 2.0 * rows.probabilities + 1.0, weights)


@metric("top_label_brier", "top-label Brier", unit="")
def top_label_brier_score(rows: Confidences, weights: FloatArray) -> FloatArray:
    """Top-label Brier score (1/N) Σ_n (conf_n − correct_n)², in [0, 1].

    >>> round(top_label_brier_score([0.8, 0.5], [1, 0]), 12)
    0.145
    """
    return _mean(np.square(rows.confidences - rows.correct), weights)


@metric("nll", "NLL", unit="nats", range=(0.0, np.inf), needs="rows")
def negative_log_likelihood(rows: Rows, weights: FloatArray, *, floor: float = NLL_FLOOR) -> FloatArray:
    """Negative log-likelihood −(1/N) Σ_n log max(p_n,y_n, floor), natural logarithm.

    The floor keeps a probability that was rounded to zero from making the mean infinite. The default lets an
    image cost 87.3 at most; for probabilities rounded to float16 the smallest positive float16, ``2**-24``,
    is a fairer one.

    >>> round(negative_log_likelihood([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    if not 0.0 < floor < 1.0:
        raise OtptError(f"expected floor between 0 and 1, both excluded, but got {floor!r}.")
    # a probability rounded above one would give a negative likelihood; + 0.0 turns -0.0 into 0.0
    return _mean(-np.log(np.clip(rows.probabilities, floor, 1.0)), weights) + 0.0


@metric("confidence", "confidence", best=None)
def mean_confidence(rows: Confidences, weights: FloatArray) -> FloatArray:
    """Mean confidence, in [0, 1].

    >>> round(mean_confidence([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 12)
    0.85
    """
    return _mean(rows.confidences, weights)


@metric("overconfidence", "over-confidence", short="Over-conf.", best="zero", range=(-1.0, 1.0))
def overconfidence(rows: Confidences, weights: FloatArray) -> FloatArray:
    """Mean confidence minus accuracy, in [−1, 1]: positive for an over-confident model.

    >>> round(overconfidence([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 12)
    0.35
    """
    return _mean(rows.confidences - rows.correct, weights)


@metric("entropy", "entropy", best=None, unit="nats", range=(0.0, np.inf), needs="rows")
def mean_entropy(rows: Rows, weights: FloatArray) -> FloatArray:
    """Mean entropy −(1/N) Σ_n Σ_c p_nc log p_nc in nats, in [0, log C], with 0·log 0 = 0.

    The labels are only validated; they are a parameter so that all metrics have the same signature.

    >>> round(mean_entropy([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    return _mean(rows.entropies, weights)
