"""Macro F1: precision and recall of each class, with equal weight however many images it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import FloatArray, IntArray, Statistic, check_predictions, of_all
from otpt.metrics.calibration.binning import groups

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def macro_f1(predictions: Values, labels: Values) -> float:
    """Mean over classes of F1_c = 2·TP_c/(n_c + m_c), in [0, 1], from predicted classes (N,) and labels (N,).

    TP_c counts the right predictions of class c, n_c its images, m_c the predictions of it. The mean is over the
    classes that have an image: one without has no recall.

    >>> round(macro_f1([0, 0, 1], [0, 1, 1]), 6)
    0.666667
    """
    return of_all(macro_f1_statistic(*check_predictions(predictions, labels)), len(labels))


def macro_f1_statistic(predictions: IntArray, labels: IntArray) -> Statistic:
    """Macro F1 as a function of weights, from checked input."""
    by_label, label_starts = groups(labels)
    by_prediction, prediction_starts = groups(predictions)
    right = (predictions == labels)[by_label].astype(np.float64)
    classes, predicted = labels[by_label][label_starts], predictions[by_prediction][prediction_starts]
    _, column, of_prediction = np.intersect1d(classes, predicted, assume_unique=True, return_indices=True)

    def value(weights: FloatArray) -> FloatArray:
        drawn = weights[:, by_label]
        images = np.add.reduceat(drawn, label_starts, axis=1)  # (R, classes that have an image)
        hits = np.add.reduceat(drawn * right, label_starts, axis=1)
        named = np.zeros_like(images)
        named[:, column] = np.add.reduceat(weights[:, by_prediction], prediction_starts, axis=1)[:, of_prediction]
        scores = 2.0 * hits / np.maximum(images + named, 1.0)
        there = images > 0
        return np.asarray(np.where(there, scores, 0.0).sum(axis=1) / there.sum(axis=1))

    return value
