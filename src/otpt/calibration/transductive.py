"""Prediction sets from more than one prediction per image: Conf-OT, weights of views, r-values.

Conf-OT and r-values look at calibration and test images together, so they are functions of arrays and not a calibration
file. All of them end in the quantile of :mod:`otpt.calibration.conformal`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from otpt.calibration.conformal import conformal_quantile, conformal_scores
from otpt.calibration.maps import Floats, Integers
from otpt.errors import OtptError

_ITERATIONS = 3  # of Conf-OT: not converged, and part of its definition


def transport(logits: Floats, marginal: Floats | None = None, *, iterations: int = _ITERATIONS) -> Floats:
    """Conf-OT's map: probabilities of a set of images whose classes have a given marginal, (N, C) → (N, C).

    Q = exp ℓ; three times each class is scaled to its share of the marginal, then each image to one (Sinkhorn).
    Silva-Rodríguez et al., CVPR 2025, arXiv 2505.24693. The released code takes the label frequencies of the
    calibration images as the marginal; the map then is not symmetric in calibration and test images, and the guarantee
    of the sets does not follow. With the default, equal shares, or any marginal that is known before, it does.

    Args:
        logits: of calibration and test images together, logit scale included.
        marginal: (C,) positive shares of the classes; equal ones if None.
    """
    images, classes = logits.shape
    shares = np.full(classes, 1 / classes) if marginal is None else np.asarray(marginal, np.float64)
    if shares.shape != (classes,) or not (shares > 0).all():
        raise OtptError(f"The marginal is {shares.tolist()}; expected {classes} positive shares.")
    plan = np.exp(np.asarray(logits, np.float64) - logits.max())  # one maximum for all: another one changes the result
    plan /= plan.sum()
    for _ in range(iterations):
        plan *= shares / shares.sum() / np.maximum(plan.sum(axis=0), np.finfo(np.float64).tiny)
        plan /= np.maximum(plan.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny) * images
    return plan * images


def conf_ot_sets(
    calibration: Floats,
    labels: Integers,
    test: Floats,
    coverage: float,
    *,
    sets: str = "lac",
    marginal: Floats | None = None,
) -> npt.NDArray[np.bool_]:
    """Prediction sets of test images by Conf-OT: logits (n, C), labels (n,) and logits (N, C) → (N, C)."""
    probabilities = transport(np.concatenate([calibration, test]), marginal)
    scores = conformal_scores(sets, probabilities)
    own = scores[np.arange(len(labels)), labels]
    return np.asarray(scores[len(labels) :] <= conformal_quantile(own, coverage))


def fit_view_weights(view_logits: Floats, labels: Integers) -> tuple[float, float]:
    """Weights (a, b) of softmax(a·ℓ_0 + b·mean_v ℓ_v) that minimise the cross-entropy: (N, V, C) and (N,).

    The mean is over the augmented views. Shanmugam et al., CVPR 2025, arXiv 2505.22764, with two weights, since random
    views are exchangeable. The labelled images must be others than those that a calibration is fitted on. The method
    ``zero-shot+view-weights[clean-weight=a,rest-weight=b]`` predicts with them.
    """
    if view_logits.ndim != 3 or view_logits.shape[1] < 2 or len(labels) != len(view_logits):
        raise OtptError(
            f"expected view logits (N, V, C) with V >= 2 and N labels, but got {view_logits.shape} and {len(labels)}."
        )
    parts = np.stack([view_logits[:, 0], view_logits[:, 1:].mean(axis=1)]).astype(np.float64)  # (2, N, C)
    rows = np.arange(len(labels))

    def loss(weights: Floats) -> tuple[float, Floats]:
        logits = np.tensordot(weights, parts, axes=1)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        totals = p.sum(axis=1, keepdims=True)
        value = float((np.log(totals[:, 0]) - logits[rows, labels]).mean())
        expected = (parts * (p / totals)).sum(axis=2) - parts[:, rows, labels]
        return value, expected.mean(axis=1)

    share = 1 / view_logits.shape[1]
    found = minimize(loss, np.array([share, 1 - share]), jac=True, method="L-BFGS-B", options={"ftol": 1e-14})
    return float(found.x[0]), float(found.x[1])


def r_values(calibration: Floats, test: Floats) -> tuple[Floats, Floats]:
    """r-values of n calibration images and of the classes of one test image: (R, n) and (R, C) → (n,) and (C,).

    R realisations (views, prompts) each rank all n + C probabilities, those of the true classes and those of the test
    image. After m steps a column counts how many realisations rank it among their first m; in each step the column
    with the largest count that has no r-value yet gets m/(n + C). arXiv 2605.23189 (2026), as in its demonstration.
    """
    together = np.concatenate([calibration, test], axis=1)
    columns = together.shape[1]
    order = np.argsort(-together, axis=1, kind="stable")
    counts, found = np.zeros(columns), np.zeros(columns)
    for step in range(columns):
        np.add.at(counts, order[:, step], 1)
        best = int(np.where(found == 0, counts, -1).argmax())
        found[best] = (step + 1) / columns
    return found[: calibration.shape[1]], found[calibration.shape[1] :]


def r_value_set(calibration: Floats, test: Floats, coverage: float) -> npt.NDArray[np.bool_]:
    """Prediction set of one test image by r-values: (R, n) and (R, C) → (C,).

    One realisation gives LAC. The r-values of the calibration images depend on the test image, so that coverage is not
    guaranteed; check it on held-out labels.
    """
    own, classes = r_values(calibration, test)
    rank = math.ceil((len(own) + 1) * coverage - 1e-9)
    threshold = np.sort(own)[rank - 1] if rank <= len(own) else math.inf
    return np.asarray(classes <= threshold)
