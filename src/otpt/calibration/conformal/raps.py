"""RAPS (regularised APS): APS with a penalty on classes far down the list, so that no set is very large."""

from __future__ import annotations

import numpy as np

from otpt.calibration.conformal.aps import aps_scores, ranking
from otpt.calibration.maps.inputs import Floats

PENALTY, FREE_RANKS = 0.01, 5
"""λ and k of the paper's experiments on ImageNet."""


def raps_scores(
    probabilities: Floats, draws: Floats, *, penalty: float = PENALTY, free_ranks: int = FREE_RANKS
) -> Floats:
    """s(x, c) = APS + λ·max(0, rank(c) − k), rank 1 being the most probable class: (N, C) → (N, C)."""
    _, ranks = ranking(probabilities)
    return aps_scores(probabilities, draws) + penalty * np.maximum(0, ranks - free_ranks)
