"""Random predictions with labels that they tend to find, for tests of metrics."""

from __future__ import annotations

import numpy as np


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def predictions(seed, n=300, classes=7, dtype=np.float64):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) * 2
    logits[np.arange(n), labels] += 1.5
    return softmax(logits).astype(dtype), labels
