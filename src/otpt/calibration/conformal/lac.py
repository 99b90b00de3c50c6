"""LAC (least ambiguous sets): the classes of probability 1 − q̂ or more; the smallest sets on average."""

from __future__ import annotations

from otpt.calibration.maps.inputs import Floats


def lac_scores(probabilities: Floats) -> Floats:
    """s(x, c) = 1 − p_c: (N, C) → (N, C)."""
    return 1.0 - probabilities
