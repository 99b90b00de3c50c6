"""The mathematics behind the figures: densities, fronts, correlations, curves. Pure functions of numpy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_CELLS = 2048


def pairwise_cosines(text_features: npt.ArrayLike) -> Floats:
    """The C(C − 1)/2 entries above the diagonal of W = E Eᵀ, for unit rows E of shape (C, D).

    >>> pairwise_cosines([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    array([0. , 0.6, 0.8])
    """
    features = np.asarray(text_features, dtype=np.float64)
    above = np.triu_indices(len(features), k=1)
    return np.asarray((features @ features.T)[above], dtype=np.float64)


def density(values: Floats, at: Floats) -> Floats:
    """Gaussian kernel density of ``values`` (N,) at the points ``at``, with Silverman's bandwidth.

    h = 0.9 · min(σ, IQR/1.34) · N^(−1/5). Values are first put into 2048 cells, finer than any bandwidth that can be
    seen, so that the half million pairs of 1000 classes cost as much as a hundred.
    """
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    low, high = np.quantile(values, [0.25, 0.75])
    narrow = min(spread, float(high - low) / 1.34) or spread
    width = max(0.9 * narrow * len(values) ** -0.2, 1e-3)
    edges = np.linspace(values.min() - 1e-9, values.max() + 1e-9, _CELLS + 1)
    counts, _ = np.histogram(values, edges)
    centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((at[:, None] - centres[None, :]) / width) ** 2)
    return np.asarray(kernel @ counts / (len(values) * width * math.sqrt(2 * math.pi)), dtype=np.float64)


def risk_coverage(confidence: Floats, correct: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Fraction of images that are answered, and the fraction of wrong answers among them, surest answers first.

    Images of equal confidence are answered together, so the curve does not depend on their order; it has one point
    for each different confidence.

    >>> coverage, risk = risk_coverage(np.array([0.9, 0.5, 0.5]), np.array([True, False, True]))
    >>> coverage.round(3), risk.round(3)
    (array([0.333, 1.   ]), array([0.   , 0.333]))
    """
    order = np.argsort(-confidence, kind="stable")
    sure, wrong = confidence[order], ~correct[order]
    last = np.append(sure[1:] != sure[:-1], True)
    answered = np.arange(1, len(sure) + 1)
    return answered[last] / len(sure), np.cumsum(wrong)[last] / answered[last]


def wilson_interval(successes: Floats, counts: npt.NDArray[Any], z: float = 1.959964) -> tuple[Floats, Floats]:
    """Wilson's 95 % interval of a fraction p = k/n, ends of the shape of ``successes``; n > 0.

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    >>> low, high = wilson_interval(np.array([8.0]), np.array([10]))
    >>> low.round(3), high.round(3)
    (array([0.49]), array([0.943]))
    """
    n = np.asarray(counts, dtype=np.float64)
    p = successes / n
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    return np.clip((middle - half) / scale, 0.0, 1.0), np.clip((middle + half) / scale, 0.0, 1.0)


def pareto_front(accuracy: Floats, ece: Floats) -> Integers:
    """Positions of the points that no other beats in both, highest accuracy first.

    >>> pareto_front(np.array([0.7, 0.8, 0.6]), np.array([0.1, 0.2, 0.3]))
    array([1, 0])
    """
    front: list[int] = []
    for i in np.lexsort((ece, -accuracy)):
        if not front or ece[i] < ece[front[-1]]:
            front.append(int(i))
    return np.asarray(front, dtype=np.int64)


def pearson(x: Floats, y: Floats) -> float:
    """Σ(x − x̄)(y − ȳ)/√(Σ(x − x̄)² Σ(y − ȳ)²); nan where one does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size > 0 else math.nan


def spearman(x: Floats, y: Floats) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)
