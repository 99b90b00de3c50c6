"""Temperature: softmax(log p/T), one number for all images and classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from otpt.calibration.maps.inputs import Floats, Integers, log_probabilities, softmax

PRIOR = 5.0
"""Labels that speak for T = 1: weight of the Gamma prior of :func:`otpt.calibration.fit_temperature`."""

BOUNDS = (0.05, 20.0)


def fit(probabilities: Floats, labels: Integers) -> dict[str, Any]:
    """T of probabilities (N, C) and labels (N,) by NLL, under the prior."""
    import torch

    from otpt.calibration.temperature import fit_temperature
    from otpt.threads import one_thread

    with one_thread():
        logits = torch.from_numpy(log_probabilities(probabilities))
        return {"temperature": fit_temperature(logits, torch.from_numpy(labels), bounds=BOUNDS, prior=PRIOR)}


def apply(probabilities: Floats, parameters: Mapping[str, Any]) -> Floats:
    """softmax(log p/T): (N, C) → (N, C)."""
    return softmax(log_probabilities(probabilities) / np.float64(parameters["temperature"]))
