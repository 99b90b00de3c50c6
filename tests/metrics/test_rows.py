"""Metrics of stored rows against those of all probabilities, and the class-wise error against a loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from otpt import metrics
from otpt.metrics import METRICS, evaluate_rows

KEPT = 0.01


def predictions(seed: int, n: int, classes: int, sharp: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = sharp * rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 2.0
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), labels


def stored(p: np.ndarray, y: np.ndarray) -> SimpleNamespace:
    """Rows by the definition: the five largest probabilities and all of one percent and more."""
    tops = [sorted(range(len(row)), key=lambda c: -row[c])[: max(5, int((row >= KEPT).sum()))] for row in p]
    return SimpleNamespace(
        labels=y,
        probabilities=p[np.arange(len(y)), y],
        predictions=p.argmax(axis=1),
        confidences=p.max(axis=1),
        correct=p.argmax(axis=1) == y,
        ranks=np.array([int((row > row[label]).sum()) for row, label in zip(p, y, strict=True)]),
        squares=(p**2).sum(axis=1),
        entropies=-(p * np.log(p)).sum(axis=1),
        top_counts=np.array([len(top) for top in tops]),
        top_classes=np.concatenate(tops),
        top_probabilities=np.concatenate([row[top] for row, top in zip(p, tops, strict=True)]),
        class_sums=p.sum(axis=0),
    )


def loop_sce(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    total = 0.0
    for c in range(p.shape[1]):
        for m in range(bins):
            low, high = np.float32(m / bins), np.float32((m + 1) / bins)
            total += abs(sum(v - (label == c) for v, label in zip(p[:, c], y, strict=True) if low < v <= high))
    return total / p.size


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 10, 20, 100])
@pytest.mark.parametrize(("n", "classes", "sharp"), [(80, 6, 1.0), (60, 120, 2.5), (1, 5, 1.0)])
def test_every_metric_is_that_of_all_probabilities(n: int, classes: int, sharp: float, bins: int, side: str) -> None:
    p, y = predictions(n, n, classes, sharp)
    found = evaluate_rows(stored(p, y), n_bins=bins, side=side).as_dict()
    expected = metrics.evaluate(p, y, n_bins=bins, side=side).as_dict()
    assert (found.pop("side"), expected.pop("side")) == (side, side)
    assert found == pytest.approx(expected, abs=1e-12)
    if side == "right" and bins < 100:
        assert found["sce"] == pytest.approx(loop_sce(p, y, bins), abs=1e-12)


@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].needs != "probabilities"])
def test_weights_of_one_give_the_metric(metric: str) -> None:
    p, y = predictions(3, 70, 40, 2.0)
    rows = stored(p, y)
    value = METRICS[metric].resampled(rows, np.ones((2, 70)), n_bins=15)
    assert value == pytest.approx([getattr(metrics.evaluate(p, y, n_bins=15), metric)] * 2, abs=1e-12)
