"""Bias-corrected temperature and vector scaling: softmax(w∘log p + c), a bias and, for "vector", a slope per class.

With slopes w_k = b + d_k the mean NLL is convex in (b, d, c), and so is what keeps few labels from saying much:

    f(b, d, c) = Σ_n −log softmax(w∘log p_n + c)[y_n]  +  5·(b − log b)  +  ½ Σ_k c_k²  +  12.5 Σ_k d_k²

a Gamma prior of five labels on b, and normal priors on the biases (standard deviation 1) and on the differences of the
slopes (0.2). "bias" has d = 0. Minimised by Newton steps; each is solved by conjugate gradients, so that the Hessian of
2C + 1 numbers is never written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from otpt.calibration.maps.inputs import Floats, Integers, log_probabilities, softmax
from otpt.calibration.maps.temperature import PRIOR

_BIAS, _SLOPE = 1.0, 25.0  # 1/variance


def fit_bias(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """Temperature and a bias for each class."""
    return _fit(probabilities, labels, slopes=False)


def fit_vector(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """A slope and a bias for each class."""
    return _fit(probabilities, labels, slopes=True)


def apply(probabilities: Floats, parameters: Mapping[str, Any]) -> Floats:
    """softmax(w∘log p + c): (N, C) → (N, C)."""
    slopes, biases = (np.asarray(parameters[name], np.float64) for name in ("slopes", "biases"))
    return softmax(slopes * log_probabilities(probabilities) + biases)


def _fit(probabilities: Floats, labels: Integers, *, slopes: bool) -> dict[str, Any]:
    logs = log_probabilities(probabilities)
    classes = logs.shape[1]
    point = np.zeros(1 + 2 * classes)
    point[0] = 1.0
    for _ in range(100):
        value, gradient, product = _objective(point, logs, labels, slopes)
        step = _conjugate_gradients(product, -gradient)
        slope = float(gradient @ step)
        if -slope <= 1e-12 * (1.0 + abs(value)):
            break
        size = 1.0
        while point[0] + size * step[0] <= 0 or (
            _objective(point + size * step, logs, labels, slopes)[0] > value + 1e-4 * size * slope
        ):
            size /= 2.0
            if size < 1e-10:  # rounding leaves nothing to gain
                break
        else:
            point = point + size * step
            continue
        break
    shared, own, biases = point[0], point[1 : 1 + classes], point[1 + classes :]
    return {"slopes": (shared + own).tolist(), "biases": biases.tolist()}


def _objective(
    point: Floats, logs: Floats, labels: Integers, slopes: bool
) -> tuple[float, Floats, Callable[[Floats], Floats]]:
    """f, its gradient, and products with its Hessian, at (b, d, c)."""
    classes, rows = logs.shape[1], np.arange(len(labels))
    shared, own, biases = point[0], point[1 : 1 + classes], point[1 + classes :]
    scores = (shared + own) * logs + biases
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    totals = probabilities.sum(axis=1, keepdims=True)
    probabilities /= totals
    value = float((np.log(totals[:, 0]) - scores[rows, labels]).sum())
    value += PRIOR * (shared - np.log(shared)) + (_SLOPE * own @ own + _BIAS * biases @ biases) / 2

    def collected(of_scores: Floats) -> Floats:
        by_class = (of_scores * logs).sum(axis=0)
        return np.concatenate([[by_class.sum()], by_class * slopes, of_scores.sum(axis=0)])

    residual = probabilities.copy()
    residual[rows, labels] -= 1.0
    gradient = collected(residual)
    gradient[0] += PRIOR * (1.0 - 1.0 / shared)
    gradient[1:] += np.concatenate([_SLOPE * own, _BIAS * biases])

    def product(direction: Floats) -> Floats:
        moved = (direction[0] + slopes * direction[1 : 1 + classes]) * logs + direction[1 + classes :]
        found = collected(probabilities * (moved - (probabilities * moved).sum(axis=1, keepdims=True)))
        found[0] += PRIOR / shared**2 * direction[0]
        found[1:] += np.concatenate([_SLOPE * direction[1 : 1 + classes], _BIAS * direction[1 + classes :]])
        return found

    return value, gradient, product


def _conjugate_gradients(product: Callable[[Floats], Floats], right: Floats) -> Floats:
    """x with H·x = right, H positive definite, as far as a Newton step needs it."""
    x, residual = np.zeros_like(right), right.copy()
    direction, size = residual.copy(), float(right @ right)
    for _ in range(2 * len(right)):
        if size <= 1e-20 * float(right @ right) or size == 0.0:
            break
        image = product(direction)
        step = size / float(direction @ image)
        x, residual = x + step * direction, residual - step * image
        before, size = size, float(residual @ residual)
        direction = residual + size / before * direction
    return x
