"""Identity: probabilities as they are, for labels that show nothing better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otpt.calibration.maps.inputs import Floats, Integers


def fit(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """Nothing to fit."""
    return {}


def apply(probabilities: Floats, parameters: Mapping[str, Any]) -> Floats:
    """(N, C), summing to one in float64 too."""
    return probabilities / probabilities.sum(axis=1, keepdims=True)
