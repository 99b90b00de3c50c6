"""Labelled probabilities with a known truth: over-confident by a known temperature."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SHARPER = 1.8


def labelled(count: int, classes: int = 8, *, seed: int = 0, spread: float = 2.0) -> tuple[Floats, Integers]:
    """Probabilities (N, C) that are SHARPER than the truth, and labels drawn from the truth."""
    draw = np.random.default_rng(seed)
    logits = spread * draw.normal(size=(count, classes))
    truth = _softmax(logits)
    labels = np.array([draw.choice(classes, p=row) for row in truth], np.int64)
    return _softmax(SHARPER * logits), labels


def facts(classes: int = 8) -> dict[str, object]:
    """What a calibration is for, as a run would say it."""
    return {
        "model": {"name": "tiny", "fingerprint": "0123456789abcdef"},
        "method": {"name": "tpt", "numbers": {"steps": 1, "objectives": {"entropy": 1.0}}},
        "classes": [f"class {i}" for i in range(classes)],
        "prompt": {"name": "a photo of a", "words": "a photo of a", "tokens": None, "vectors": None},
        "views": "views-1 n=64 augmix=on",
        "official_precision": False,
        "official_orientation": False,
    }


def _softmax(logits: Floats) -> Floats:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
