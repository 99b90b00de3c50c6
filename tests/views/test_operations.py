"""Every fast operation gives the very bytes Pillow gives."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles.methods.augmix import literal_chain
from PIL import Image, ImageOps

from otpt.views import Operation, draw_view
from otpt.views.augmix import (
    Planes,
    apply_table,
    autocontrast_table,
    equalize_table,
    extremes,
    posterize_table,
    run_chain,
    solarize_table,
)
from otpt.views.geometry import rotate, shear_x, shear_y, translate

needs_plain_pillow = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"),
    reason="Pillow may be built with fused multiply-add here, and then rounds otherwise",
)


def _noise(size: int, seed: int, *, kind: str = "noise") -> np.ndarray:
    """(3, S, S): noise; few values; or only black and white (the steepest edges)."""
    rng = np.random.default_rng(seed)
    if kind == "flat":
        return rng.integers(100, 103, (3, size, size), dtype=np.uint8)
    if kind == "edges":
        return (rng.integers(0, 2, (3, size, size)) * 255).astype(np.uint8)
    return rng.integers(0, 256, (3, size, size), dtype=np.uint8)


def _image(planes: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def _planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)


def _affine(image: Image.Image, matrix: tuple[float, ...]) -> np.ndarray:
    moved = image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)
    return _planes(moved)


@pytest.mark.parametrize("size", [64, 97, 224])
@pytest.mark.parametrize("distance", [-300, -7, -1, 0, 1, 3, 7, 63, 64])
def test_translate(size, distance):
    planes = _noise(size, distance + 1000)
    image = _image(planes)
    np.testing.assert_array_equal(translate(planes, distance, axis=2), _affine(image, (1, 0, distance, 0, 1, 0)))
    np.testing.assert_array_equal(translate(planes, distance, axis=1), _affine(image, (1, 0, 0, 0, 1, distance)))


@needs_plain_pillow
@pytest.mark.parametrize("kind", ["noise", "flat", "edges"])
@pytest.mark.parametrize("size", [64, 97, 224, 448])
def test_rotate(size, kind):
    planes = _noise(size, 3, kind=kind)
    for degrees in (-2, -1, 1, 2, 45):
        expected = _planes(_image(planes).rotate(degrees, resample=Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(rotate(planes, degrees), expected)


# Besides generic factors: those whose shifts are fractions with small denominators, where truncation is a knife's edge.
FACTORS = [0.003, 0.005, 0.0123, 0.025, 1 / 64, 3 / 128, 0.02, 0.0298765, 2 / 255, 0.03, 0.5, 1.0]


@needs_plain_pillow
@pytest.mark.parametrize("kind", ["noise", "flat", "edges"])
@pytest.mark.parametrize("size", [64, 97, 224])
def test_shear(size, kind):
    planes = _noise(size, 5, kind=kind)
    image = _image(planes)
    for factor in (*FACTORS, *(-f for f in FACTORS), 0.0):
        np.testing.assert_array_equal(shear_x(planes, factor), _affine(image, (1, factor, 0, 0, 1, 0)))
        np.testing.assert_array_equal(shear_y(planes, factor), _affine(image, (1, 0, 0, factor, 1, 0)))


POINT = {
    "autocontrast": (lambda h: autocontrast_table(*extremes(h)), ImageOps.autocontrast),
    "equalize": (equalize_table, ImageOps.equalize),
    "posterize": (lambda h: posterize_table(4), lambda image: ImageOps.posterize(image, 4)),
    "solarize": (lambda h: solarize_table(240), lambda image: ImageOps.solarize(image, 240)),
}


@pytest.mark.parametrize("name", POINT)
@given(
    planes=hnp.arrays(np.uint8, st.tuples(st.just(3), st.integers(1, 40), st.integers(1, 40))),
    narrow=st.sampled_from([1, 2, 9, 100]),
)
def test_point_operations(name, planes, narrow):
    planes = np.ascontiguousarray(planes // narrow + narrow)
    table_of, literal = POINT[name]
    table = table_of(Planes(planes).histogram)
    np.testing.assert_array_equal(apply_table(planes, table), _planes(literal(_image(planes))))


@pytest.mark.parametrize("ones", [1, 254, 255, 300, 509, 510, 700])
def test_equalize_where_the_table_overflows(ones):
    """Nearly all pixels share the highest value: the step is tiny, and Pillow clips the table at 255."""
    planes = np.full((3, 64, 64), 250, np.uint8)
    planes.reshape(3, -1)[:, :ones] = np.arange(ones) % 200
    expected = _planes(ImageOps.equalize(_image(planes)))
    np.testing.assert_array_equal(apply_table(planes, equalize_table(Planes(planes).histogram)), expected)


def _run(planes: np.ndarray, chain: tuple[Operation, ...]) -> np.ndarray:
    result, table = run_chain(Planes(planes), chain)
    return result.pixels if table is None else apply_table(result.pixels, table)


@needs_plain_pillow
@pytest.mark.parametrize("size", [64, 224])
def test_chains_as_drawn(size):
    planes = _noise(size, 8)
    planes[:, 10:40, 5:60] = 17  # a flat patch, where truncation of a whole number shows
    image = _image(planes)
    for v in range(25):
        for chain in draw_view(3, "chains", v, width=10, height=10).augmix.chains:
            expected = _planes(literal_chain(image, chain, size))
            np.testing.assert_array_equal(_run(planes, chain), expected, err_msg=str(chain))
