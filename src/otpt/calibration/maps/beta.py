"""Beta calibration of the confidence (Kull et al., AISTATS 2017): log-odds a·ln s − b·ln(1 − s) + c, with a, b ≥ 0.

(a, b, c) = (1, 1, 0) leaves the confidence s as it is. Fitted by the likelihood of right and wrong predictions under a
normal prior of variance 1 around that point, so that few labels move it little; where a or b would be negative it is 0,
and the other two are fitted anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from otpt.calibration.maps.confidence import top, with_confidence
from otpt.calibration.maps.inputs import Floats, Integers

_SMALLEST = 1e-12
_IDENTITY = np.array([1.0, 1.0, 0.0])


def fit(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """(a, b, c) of probabilities (N, C) and labels (N,)."""
    features = _features(probabilities)
    correct = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    free = np.array([True, True, True])
    while True:
        found = _logistic(features, correct, free)
        negative = (found[:2] < 0) & free[:2]
        if not negative.any():
            break
        free[int(np.argmin(np.where(negative, found[:2], 0.0)))] = False
    return {"a": float(found[0]), "b": float(found[1]), "c": float(found[2])}


def apply(probabilities: Floats, parameters: Mapping[str, Any]) -> Floats:
    """(N, C) with the calibrated confidences."""
    odds = _odds(_features(probabilities), np.array([parameters[name] for name in "abc"], np.float64))
    return with_confidence(probabilities, 1.0 / (1.0 + np.exp(-odds)))


def _features(probabilities: Floats) -> Floats:
    """(ln s, −ln(1 − s), 1): (N, 3)."""
    largest, rest = top(probabilities)
    return np.stack([np.log(largest), -np.log(np.maximum(rest, _SMALLEST)), np.ones(len(largest))], axis=1)


def _odds(features: Floats, point: Floats) -> Floats:
    """a·ln s − b·ln(1 − s) + c: (N,). Not by a matrix product, whose rounding may depend on the number of rows."""
    return np.asarray((features * point).sum(axis=1))


def _logistic(features: Floats, correct: Floats, free: Any) -> Floats:
    """Newton steps on the penalised log-likelihood, strictly concave; what is not free is 0."""
    point = np.where(free, _IDENTITY, 0.0)
    value = _loss(point, features, correct)
    for _ in range(100):
        probabilities = 1.0 / (1.0 + np.exp(-_odds(features, point)))
        gradient = ((features * (probabilities - correct)[:, None]).sum(axis=0) + point - _IDENTITY)[free]
        hessian = np.einsum("ni,n,nj->ij", features, probabilities * (1.0 - probabilities), features) + np.eye(3)
        step = np.zeros(3)
        step[free] = -np.linalg.solve(hessian[np.ix_(free, free)], gradient)
        size = 1.0
        while (reached := _loss(point + size * step, features, correct)) > value and size > 1e-10:
            size /= 2.0
        if reached >= value - 1e-13 * (1.0 + abs(value)):
            break
        point, value = point + size * step, reached
    return np.asarray(point)


def _loss(point: Floats, features: Floats, correct: Floats) -> float:
    odds = _odds(features, point)
    return float((np.logaddexp(0.0, odds) - correct * odds).sum() + ((point - _IDENTITY) ** 2).sum() / 2)
