"""What a run says of single classes: accuracy of each, and which are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otpt.runs import Rows


@dataclass(frozen=True)
class ClassScore:
    """One class under one method.

    Attributes:
        images: how many have this label.
        accuracy: fraction of them that are predicted as it (recall); None without an image.
        predicted: how many images are predicted as it, rightly or not.
        confidence: mean confidence of the images that have this label; None without an image.
    """

    name: str
    images: int
    accuracy: float | None
    predicted: int
    confidence: float | None


@dataclass(frozen=True)
class Confusion:
    """Images of one class that are predicted as another: how many, and the fraction of the class."""

    label: str
    prediction: str
    images: int
    fraction: float


def class_scores(rows: Rows, classes: Sequence[str]) -> list[ClassScore]:
    """A score for each class, in label order."""
    found = []
    for label, name in enumerate(classes):
        own = rows.labels == label
        images = int(own.sum())
        found.append(
            ClassScore(
                name,
                images,
                float(rows.correct[own].mean()) if images else None,
                int((rows.predictions == label).sum()),
                float(rows.confidences[own].mean()) if images else None,
            )
        )
    return found


def confusions(rows: Rows, classes: Sequence[str], count: int) -> list[Confusion]:
    """The ``count`` most frequent pairs (label, other prediction); of equal ones in label order."""
    wrong = rows.labels != rows.predictions
    codes = rows.labels[wrong] * len(classes) + rows.predictions[wrong]
    pairs, times = np.unique(codes, return_counts=True)
    order = np.argsort(-times, kind="stable")[:count]
    found = []
    for pair, images in zip(pairs[order].tolist(), times[order].tolist(), strict=True):
        label, prediction = divmod(pair, len(classes))
        of_class = int((rows.labels == label).sum())
        found.append(Confusion(classes[label], classes[prediction], images, images / of_class))
    return found
