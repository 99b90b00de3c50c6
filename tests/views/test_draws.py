"""The draws: torchvision's crop rule, the table's ranges, the laws, and values that must never change."""

from __future__ import annotations

import hashlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import transforms as torchvision_transforms

from otpt.views import Operation, draw_view
from otpt.views.draws import OPERATIONS, crop_box, view_uniforms

GOLDEN_UNIFORMS = [0.2798671649138046, 0.9139852825026362, 0.7283437162141904]
GOLDEN_CROP = (29, 48, 223, 283)
GOLDEN_OPERATIONS = ["posterize", "shear_y", "posterize", "shear_x", "autocontrast", "autocontrast", "equalize"]
GOLDEN_DIGEST = "df938399bcda48d4"


def _draws(n: int, **options):
    options = {"width": 500, "height": 375, **options}
    return [draw_view(7, "some image", v, **options) for v in range(1, n + 1)]


class _FakeTorch:
    """torch as torchvision's rule sees it, but its random numbers come from a list, in double precision."""

    log, exp = staticmethod(torch.log), staticmethod(torch.exp)

    def __init__(self, tries: list[float], position: list[float]) -> None:
        self._tries, self._position = iter(tries), iter(position)

    def tensor(self, values):
        return torch.tensor(values, dtype=torch.float64)

    def empty(self, _n):
        def uniform_(low, high):
            return torch.tensor([float(low) + (float(high) - float(low)) * next(self._tries)], dtype=torch.float64)

        return SimpleNamespace(uniform_=uniform_)

    def randint(self, low, high, size):
        return torch.tensor([low + int(next(self._position) * (high - low))])


@given(
    st.lists(st.floats(0, 1, exclude_max=True), min_size=22, max_size=22),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from([((0.08, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.5, 0.6)), ((0.001, 0.002), (1.0, 1.0))]),
)
def test_crop_box_is_torchvisions_rule(uniforms, width, height, settings):
    scale, ratio = settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision_transforms, "torch", _FakeTorch(uniforms[:20], uniforms[20:]))
        expected = torchvision_transforms.RandomResizedCrop.get_params(
            torch.zeros(3, 1, 1).expand(3, height, width), list(scale), list(ratio)
        )
    assert tuple(crop_box(uniforms, width=width, height=height, scale=scale, ratio=ratio)) == expected


def test_laws_of_flip_and_augmix():
    draws = _draws(6000)
    n = len(draws)
    assert abs(np.mean([d.flip for d in draws]) - 0.5) < 5 * 0.5 / math.sqrt(n)
    weights = np.array([d.augmix.weights for d in draws])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=2e-7)
    # Dirichlet(1, 1, 1): each weight is Beta(1, 2): mean 1/3, variance 1/18; two of them have covariance −1/36.
    np.testing.assert_allclose(weights.mean(axis=0), 1 / 3, atol=0.016)
    np.testing.assert_allclose(np.cov(weights.T), (np.eye(3) * 3 - 1) / 36, atol=0.004)
    mix = np.array([d.augmix.mix for d in draws])
    counts = np.histogram(mix, bins=10, range=(0, 1))[0]
    assert (np.abs(counts - n / 10) < 5 * math.sqrt(n * 0.09)).all()
    depths = np.bincount([len(c) for d in draws for c in d.augmix.chains], minlength=4)
    assert depths[0] == 0
    assert len(depths) == 4
    assert (np.abs(depths[1:] - n) < 5 * math.sqrt(3 * n * 2 / 9)).all()
    operations = [o for d in draws for c in d.augmix.chains for o in c]
    counts = np.array([sum(o.name == name for o in operations) for name in OPERATIONS])
    assert (np.abs(counts - len(operations) / 9) < 5 * math.sqrt(len(operations) * 8 / 81)).all()
    assert abs(np.mean([o.negative for o in operations]) - 0.5) < 0.02
    levels = np.array([o.level for o in operations])
    assert 0.1 <= levels.min() < 0.102
    assert 0.998 < levels.max() < 1.0


@pytest.mark.parametrize("size", [64, 224, 448])
def test_ranges_of_the_table(size):
    levels = [0.1, *np.linspace(0.1, 1, 2001)[:-1].tolist(), math.nextafter(1.0, 0.0)]

    def amounts(name: str, negative: bool = False) -> list[float]:
        return [Operation(name, s, negative).amount(size) for s in levels]

    assert set(amounts("posterize")) == {4}
    assert set(amounts("rotate")) == {0, 1, 2}
    assert set(amounts("rotate", True)) == {0, -1, -2}
    assert set(amounts("solarize")) == set(range(231, 255))
    shears = amounts("shear_x")
    assert min(shears) == pytest.approx(0.003)
    assert max(shears) == pytest.approx(0.03)
    assert amounts("shear_y", True) == [-s for s in shears]
    least, most = size // 300, math.ceil(size / 30) - 1
    assert set(amounts("translate_x")) == set(range(least, most + 1))
    assert set(amounts("translate_y", True)) == set(range(-most, -least + 1))
    if size == 224:
        assert (least, most) == (0, 7)


@pytest.mark.equality
def test_a_view_depends_on_its_key_alone():
    first = draw_view(0, "a", 5, width=40, height=30)
    assert first == draw_view(0, "a", 5, width=40, height=30)
    for other in ((1, "a", 5), (0, "b", 5), (0, "a", 6)):
        assert view_uniforms(*other) != view_uniforms(0, "a", 5)
    # No two keys may run together: ("1", 2) is not (12, "").
    assert view_uniforms(0, "1\n2", 3) != view_uniforms(0, "2", 31)


def test_an_id_from_a_file_name_that_is_not_unicode():
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert len(view_uniforms(0, name, 1)) == len(view_uniforms(0, "café.jpg", 1))


def test_golden_draws():
    """Published results name per seed: these values may change only together with the recipe's version."""
    uniforms = view_uniforms(0, "a", 1)
    assert len(uniforms) == 56
    assert uniforms[:3] == GOLDEN_UNIFORMS
    draw = draw_view(0, "a", 1, width=500, height=375)
    assert tuple(draw.crop) == GOLDEN_CROP
    assert [o.name for chain in draw.augmix.chains for o in chain] == GOLDEN_OPERATIONS
    text = "\n".join(repr(view_uniforms(seed, name, 63)) for seed in (0, 1, 2**40) for name in ("", "beagle_1.jpg"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN_DIGEST
