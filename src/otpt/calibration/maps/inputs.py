"""Probabilities as maps take them: as float32 holds them, and as logits log p."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

_TINY = float(np.finfo(np.float32).tiny)


def as_stored(probabilities: npt.NDArray[Any]) -> Floats:
    """Probabilities (…, C) rounded to float32, as rows of a run store them, in float64.

    So that it does not matter whether a file was made from the rows of a run or an image is predicted right now.
    """
    return np.asarray(probabilities, np.float32).astype(np.float64)


def log_probabilities(probabilities: Floats) -> Floats:
    """log p of (…, C), from the smallest normal float32 on: softmax(log p) = p."""
    return np.log(np.maximum(probabilities, _TINY))


def softmax(logits: Floats) -> Floats:
    """Over the last dimension of (…, C)."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
