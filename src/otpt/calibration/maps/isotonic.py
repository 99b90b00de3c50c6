"""Isotonic calibration of the confidence: the rising step function that is nearest to right (1) and wrong (0).

    min Σ_n (g(s_n) − [right_n])²  over non-decreasing g

by pooling neighbours that violate the order; between the steps it is interpolated, and outside of them constant. Its
values stay within [1/(N + 2), (N + 1)/(N + 2)], since N labels cannot show that a confidence of 0 or 1 is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from otpt.calibration.maps.confidence import top, with_confidence
from otpt.calibration.maps.inputs import Floats, Integers


def fit(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """The corners (x, y) of the function."""
    confidence, _ = top(probabilities)
    x, y = pool(confidence, (probabilities.argmax(axis=1) == labels).astype(np.float64))
    n = len(labels)
    return {"x": x.tolist(), "y": np.clip(y, 1.0 / (n + 2), (n + 1.0) / (n + 2)).tolist()}


def apply(probabilities: Floats, parameters: Mapping[str, Any]) -> Floats:
    """(N, C) with the calibrated confidences."""
    confidence, _ = top(probabilities)
    x, y = (np.asarray(parameters[name], np.float64) for name in "xy")
    return with_confidence(probabilities, np.interp(confidence, x, y))


def pool(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Pool-adjacent-violators: the first and last x of each step, and its value."""
    places, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=y) / counts
    steps: list[list[float]] = []  # value, weight, first, last
    for i, (mean, count) in enumerate(zip(means.tolist(), counts.tolist(), strict=True)):
        steps.append([mean, count, i, i])
        while len(steps) > 1 and steps[-2][0] >= steps[-1][0]:
            value, weight, _, last = steps.pop()
            before = steps[-1]
            total = before[1] + weight
            steps[-1] = [(before[0] * before[1] + value * weight) / total, total, before[2], last]
    ends = [(int(at), step[0]) for step in steps for at in dict.fromkeys(step[2:])]
    return places[[at for at, _ in ends]], np.array([value for _, value in ends])
