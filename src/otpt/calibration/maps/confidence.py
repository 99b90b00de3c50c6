"""A distribution with a given confidence: that of the image at the temperature of its own that gives it.

A map of the confidence alone leaves open what becomes of the other classes. softmax(log p/τ), with τ such that its
largest entry is the wanted confidence, sums to one, keeps the order of all classes and so the label, and reaches every
confidence above 1/C; scaling the others in proportion would make one of them the label wherever confidence sinks.
"""

from __future__ import annotations

import numpy as np

from otpt.calibration.maps.inputs import Floats, log_probabilities, softmax

_HALVINGS = 60
_LIMITS = (np.log(1e-3), np.log(1e3))  # of 1/τ
_LEAST = 1.02
"""Times 1/C: the least confidence that is aimed at, since at 1/C all classes are equal."""


def with_confidence(probabilities: Floats, wanted: Floats) -> Floats:
    """softmax(log p/τ) of (N, C) with max = ``wanted`` (N,): (N, C).

    Where classes tie for the first place, or 1/C is wanted, the nearest confidence that τ in [10⁻³, 10³] gives.
    """
    logs = log_probabilities(probabilities)
    gaps = logs - logs.max(axis=1, keepdims=True)
    target = np.maximum(wanted, _LEAST / probabilities.shape[1])
    low, high = (np.full(len(gaps), each) for each in _LIMITS)
    for _ in range(_HALVINGS):  # the confidence 1/Σ exp(b·gap) rises with b = 1/τ
        middle = (low + high) / 2
        short = 1.0 / np.exp(np.exp(middle)[:, None] * gaps).sum(axis=1) < target
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return softmax(np.exp((low + high) / 2)[:, None] * gaps)


def top(probabilities: Floats) -> tuple[Floats, Floats]:
    """The confidence s (N,) and 1 − s as the sum of the others, which keeps its digits where s is 1."""
    largest = probabilities.argmax(axis=1)[:, None]
    others = probabilities.copy()
    np.put_along_axis(others, largest, 0.0, axis=1)
    return np.take_along_axis(probabilities, largest, axis=1)[:, 0], others.sum(axis=1)
