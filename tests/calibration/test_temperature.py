"""Temperature: the published constants, and the fit against a fine grid, scipy and known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from otpt import calibration
from otpt.errors import OtptError


def labelled(seed, n=400, classes=6, temperature=2.0):
    """Logits (N, C) and labels drawn from softmax(logits/temperature): the best T is near ``temperature``."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64) * 4
    labels = torch.multinomial(torch.softmax(logits / temperature, dim=1), 1, generator=generator)[:, 0]
    return logits, labels


def nll(logits, labels, temperature):
    return float(torch.nn.functional.cross_entropy(logits / temperature, labels))


def test_published_constants():
    assert calibration.fixed_temperature("vit") == 1.16
    assert calibration.fixed_temperature("resnet") == 1.15
    with pytest.raises(OtptError, match="'other'"):
        calibration.fixed_temperature("other")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_apply_keeps_shape_and_dtype_and_arg_max(dtype):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    scaled = calibration.apply_temperature(logits, 1.16)
    assert scaled.dtype == dtype
    torch.testing.assert_close(scaled, torch.tensor(logits.double().numpy() / 1.16).to(dtype))
    assert torch.equal(scaled.argmax(-1), logits.argmax(-1))
    torch.testing.assert_close(calibration.apply_temperature(logits.numpy(), 1.16), scaled)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_bad_temperature(temperature):
    with pytest.raises(OtptError, match="expected a finite temperature > 0, but got"):
        calibration.apply_temperature(torch.zeros(2), temperature)


@pytest.mark.parametrize("true", [0.02, 0.3, 1.0, 2.0, 9.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_fit_against_grid_and_scipy(true, seed):
    logits, labels = labelled(seed, temperature=true)
    logits = logits + (0.02 if true < 0.1 else 0) * torch.randn(
        logits.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    found = calibration.fit_temperature(logits, labels)
    grid = np.geomspace(1e-2, 1e2, 2001)
    values = [nll(logits, labels, t) for t in grid]
    best = int(np.argmin(values))
    assert grid[max(best - 1, 0)] <= found <= grid[min(best + 1, 2000)]
    brute = minimize_scalar(
        lambda u: nll(logits, labels, np.exp(u)),
        bounds=(np.log(grid[best]) - 0.1, np.log(grid[best]) + 0.1),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert found == pytest.approx(float(np.exp(brute.x)), rel=1e-6)
    assert nll(logits, labels, found) <= brute.fun + 1e-14


def test_fit_has_zero_slope():
    # two classes a distance d apart, a share q right: 1/T = log(q/(1 − q))/d in closed form
    d, n, right = 3.0, 1000, 870
    logits = torch.tensor([[d, 0.0]]).expand(n, 2)
    labels = (torch.arange(n) >= right).long()
    assert calibration.fit_temperature(logits, labels) == pytest.approx(d / np.log(870 / 130), rel=1e-12)


def test_fit_accepts_numpy_float16_and_small_label_types():
    logits, labels = labelled(seed=5)
    t = calibration.fit_temperature(logits, labels)
    frozen = logits.numpy().copy()
    frozen.setflags(write=False)
    assert calibration.fit_temperature(frozen, labels.numpy().astype(np.uint8)) == t
    assert calibration.fit_temperature(logits.half(), labels.int()) == pytest.approx(t, rel=1e-2)
    assert calibration.fit_temperature(logits.requires_grad_(), labels) == t


@pytest.mark.slow
def test_fit_in_chunks():
    """The same images many times over, more than 2²² logits, have the same best temperature."""
    logits, labels = labelled(seed=6)
    t = calibration.fit_temperature(logits, labels)
    assert calibration.fit_temperature(logits.repeat(2000, 1), labels.repeat(2000)) == pytest.approx(t, rel=1e-12)


def test_fit_at_its_bounds():
    logits, labels = labelled(seed=7, temperature=2.0)
    for own, bounds, bound in (
        (logits.argmax(1), (1e-3, 1e3), 1e-3),
        (logits.argmin(1), (0.1, 50.0), 50.0),
        (labels, (5.0, 10.0), 5.0),
        (labels, (0.1, 0.5), 0.5),
    ):
        with pytest.warns(UserWarning, match=f"bound {bound:g}:"):
            assert calibration.fit_temperature(logits, own, bounds=bounds) == bound


def test_fit_where_temperature_does_not_matter():
    assert calibration.fit_temperature(torch.randn(5, 1), torch.zeros(5, dtype=torch.long)) == 1.0
    assert calibration.fit_temperature(torch.full((5, 3), 2.0), torch.tensor([0, 1, 2, 0, 1])) == 1.0


@pytest.mark.parametrize(
    ("logits", "labels", "bounds", "value"),
    [
        (torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]), (0.1, 1.0), "nan"),
        (torch.zeros(3), torch.tensor([0]), (0.1, 1.0), r"\(3,\)"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), (0.1, 1.0), r"\(0, 3\)"),
        (torch.zeros(2, 3), torch.tensor([0]), (0.1, 1.0), r"\(1,\)"),
        (torch.zeros(1, 3), torch.tensor([0.0]), (0.1, 1.0), "torch.float32"),
        (torch.zeros(1, 3), torch.tensor([True]), (0.1, 1.0), "torch.bool"),
        (torch.zeros(1, 3), torch.tensor([3]), (0.1, 1.0), "from 0 to 2, but got 3"),
        (torch.zeros(1, 3), torch.tensor([-1]), (0.1, 1.0), "-1"),
        (torch.zeros(1, 3, dtype=torch.long), torch.tensor([0]), (0.1, 1.0), "torch.int64"),
        (np.array([["a"]]), torch.tensor([0]), (0.1, 1.0), "array of numbers"),
        (torch.zeros(1, 2), torch.tensor([0]), (2.0, 1.0), r"\(2.0, 1.0\)"),
        (torch.zeros(1, 2), torch.tensor([0]), (float("nan"), 1.0), "nan"),
    ],
)
def test_bad_input(logits, labels, bounds, value):
    with pytest.raises(OtptError, match=value):
        calibration.fit_temperature(logits, labels, bounds=bounds)
