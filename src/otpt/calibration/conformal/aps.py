"""APS (adaptive prediction sets): the most probable classes until their sum reaches q̂; harder images get more."""

from __future__ import annotations

import numpy as np

from otpt.calibration.maps.inputs import Floats, Integers


def aps_scores(probabilities: Floats, draws: Floats) -> Floats:
    """s(x, c) = Σ p_j over the classes before c + u·p_c, u = ``draws`` (N,) in [0, 1): (N, C) → (N, C).

    Of tied classes the one listed first comes before. u makes the score continuous where p is near 0 or 1; without it,
    sure images would have scores near 1 whether right or wrong, and all sets would grow.
    """
    order, _ = ranking(probabilities)
    ordered = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    scores = np.empty_like(probabilities)
    np.put_along_axis(scores, order, before + draws[:, None] * ordered, axis=1)
    return scores


def ranking(probabilities: Floats) -> tuple[Integers, Integers]:
    """Classes from the most probable on, and the rank 1 … C of each class: (N, C) each."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None, :], axis=1)
    return order, ranks
