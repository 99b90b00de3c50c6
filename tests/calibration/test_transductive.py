"""Conf-OT, weights of views and r-values: reference values and literal loops."""

from __future__ import annotations

import numpy as np
import pytest

from otpt import OtptError
from otpt.calibration import conf_ot_sets, fit_view_weights, r_value_set, r_values, transport
from otpt.calibration.conformal import conformal_quantile

TEXTS = np.array([[1, 0.2, 0.1], [0.3, 1, 0.1]])
IMAGES = np.array([[9, 4, 2], [4, 9, 3], [7, 6, 5], [8, 3, 4], [2, 8, 5], [9, 5, 1]])
LOGITS = 10 * (IMAGES / np.linalg.norm(IMAGES, axis=1)[:, None]) @ (TEXTS / np.linalg.norm(TEXTS, axis=1)[:, None]).T


def test_transport() -> None:
    expected = [0.921982, 0.009598, 0.397066, 0.940108, 0.003900, 0.838128]
    np.testing.assert_allclose(transport(LOGITS)[:, 0], expected, atol=6e-7)
    expected = [0.982151, 0.043174, 0.754079, 0.986502, 0.017905, 0.960173]
    found = transport(LOGITS, np.array([2 / 3, 1 / 3]))
    np.testing.assert_allclose(found[:, 0], expected, atol=6e-7)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    labels = np.array([0, 1, 0])
    sets = conf_ot_sets(LOGITS[:3], labels, LOGITS[3:], 0.5, marginal=np.array([2 / 3, 1 / 3]))
    assert sets.tolist() == [[True, False], [False, True], [True, False]]
    np.testing.assert_allclose(transport(LOGITS + 700), transport(LOGITS), atol=1e-10)


def test_view_weights_minimise_the_loss() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 5, 300)
    views = 6 * draw.normal(size=(300, 8, 5)) + 3 * np.eye(5)[labels][:, None]

    def loss(a: float, b: float) -> float:
        logits = a * views[:, 0] + b * views[:, 1:].mean(axis=1)
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(300), labels]).mean())

    a, b = fit_view_weights(views, labels)
    best = loss(a, b)
    assert all(loss(a + x, b + y) >= best for x in (-1e-3, 0, 1e-3) for y in (-1e-3, 0, 1e-3))
    assert best < min(loss(1, 0), loss(1 / 8, 7 / 8))


def test_r_values() -> None:
    rows = np.array([[0.9, 0.6, 0.4, 0.8, 0.2], [0.8, 0.7, 0.5, 0.3, 0.6], [0.95, 0.5, 0.45, 0.85, 0.1]])
    own, classes = r_values(rows[:, :3], rows[:, 3:])
    assert own.tolist() == [0.2, 0.6, 0.8]
    assert classes.tolist() == [0.4, 1.0]
    assert r_value_set(rows[:, :3], rows[:, 3:], 0.75).tolist() == [True, False]
    draw = np.random.default_rng(1)  # one realisation is LAC
    calibration, test = draw.random(40), draw.random(6)
    expected = 1 - test <= conformal_quantile(1 - calibration, 0.9)
    assert r_value_set(calibration[None], test[None], 0.9).tolist() == expected.tolist()


def test_bad_input() -> None:
    with pytest.raises(OtptError, match="positive"):
        transport(LOGITS, np.array([1.0, 0.0]))
    with pytest.raises(OtptError, match="views"):
        fit_view_weights(LOGITS[:, None], np.zeros(6, int))
