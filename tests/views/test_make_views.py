"""``make_views`` against the literal way, the clean view bit by bit, and the recipe."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from oracles.methods.augmix import literal_views
from PIL import Image

from otpt.errors import OtptError
from otpt.views import Preprocessing, ViewRecipe, make_views

PLAIN_PILLOW = platform.machine().lower() in ("x86_64", "amd64")


def _photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes, noise, a saturated corner and a black one."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels = pixels + rng.integers(-12, 13, pixels.shape)
    pixels[: height // 3, : width // 3] = 255
    pixels[-(height // 4) - 1 :, -(width // 4) - 1 :] = 0
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _bound(numbers: Preprocessing) -> float:
    return 20 * 2.0**-24 * max((1 + m) / s for m, s in zip(numbers.mean, numbers.std, strict=True))


@pytest.mark.skipif(not PLAIN_PILLOW, reason="Pillow may be built with fused multiply-add here")
@pytest.mark.parametrize(
    ("numbers", "shape"),
    [
        (Preprocessing(64), (500, 375)),
        (Preprocessing(224), (320, 240)),
        (Preprocessing(97, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), resize_mode="squash"), (61, 200)),
        (Preprocessing(64, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation="bilinear"), (64, 64)),
        (Preprocessing(448), (200, 300)),
    ],
)
def test_augmix_equals_the_literal_way(numbers, shape):
    recipe = ViewRecipe(n_views=16 if numbers.size < 200 else 6)
    image = _photograph(*shape)
    ours = make_views(image, recipe, numbers, seed=11, image_id="x")
    theirs = literal_views(image, recipe, numbers, 11, "x")
    assert ours.dtype == np.float32
    assert ours.shape == (recipe.n_views, 3, numbers.size, numbers.size)
    difference = np.abs(ours.astype(float) - theirs)
    assert difference.max() <= _bound(numbers)
    assert difference.max() <= 2e-6  # what the bound leaves room for is not used up


@pytest.mark.parametrize("shape", [(500, 375), (64, 64), (1, 1), (3, 2000), (2000, 3), (40, 30)])
@pytest.mark.parametrize("size", [64, 130])
def test_crops_and_clean_view_are_bit_equal(shape, size):
    recipe = ViewRecipe(n_views=5, augmix=False)
    image, numbers = _photograph(*shape), Preprocessing(size)
    expected = literal_views(image, recipe, numbers, 2, "id")
    np.testing.assert_array_equal(make_views(image, recipe, numbers, seed=2, image_id="id"), expected)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("resize_mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (333, 64), (64, 333), (30, 47), (64, 64), (301, 300)])
def test_clean_view_is_torchvisions_and_open_clips(shape, resize_mode, interpolation):
    numbers = Preprocessing(64, resize_mode=resize_mode, interpolation=interpolation)
    image, recipe = _photograph(*shape), ViewRecipe(n_views=1)
    expected = literal_views(image, recipe, numbers, 0, "")
    np.testing.assert_array_equal(make_views(image, recipe, numbers, seed=0, image_id=""), expected)


def test_the_short_cut_for_long_images_is_within_one_level():
    image, numbers = _photograph(24_000, 3), Preprocessing(64)
    long = image.resize((64 * 8000, 64), Image.Resampling.BICUBIC)  # 33 million pixels
    left = (long.width - 64) // 2
    exact = np.asarray(long.crop((left, 0, left + 64, 64)), dtype=np.float32).transpose(2, 0, 1) / 255
    (short,) = make_views(image, ViewRecipe(n_views=1), numbers, seed=0, image_id="")
    mean, std = (np.array(values)[:, None, None] for values in (numbers.mean, numbers.std))
    assert np.abs(short * std + mean - exact).max() <= 1.001 / 255
    assert exact.std() > 0.01, "or any crop would do"


@pytest.mark.equality
def test_more_views_change_none_and_crops_do_not_depend_on_augmix():
    image, numbers = _photograph(120, 90), Preprocessing(64)
    few = make_views(image, ViewRecipe(n_views=3), numbers, seed=1, image_id="p")
    many = make_views(image, ViewRecipe(n_views=9), numbers, seed=1, image_id="p")
    np.testing.assert_array_equal(few, many[:3])
    assert not np.array_equal(many[1], many[2])
    other_seed = make_views(image, ViewRecipe(n_views=3), numbers, seed=2, image_id="p")
    other_id = make_views(image, ViewRecipe(n_views=3), numbers, seed=1, image_id="q")
    for other in (other_seed, other_id):
        np.testing.assert_array_equal(other[0], few[0])
        assert not np.array_equal(other[1], few[1])


def test_a_crop_beyond_pillows_warning_limit_is_silent(monkeypatch):
    image, numbers, recipe = _photograph(90, 80), Preprocessing(64), ViewRecipe(n_views=6, augmix=False)
    expected = make_views(image, recipe, numbers, seed=0, image_id="")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64)  # larger crops now warn, and warnings are errors
    np.testing.assert_array_equal(make_views(image, recipe, numbers, seed=0, image_id=""), expected)


def test_only_rgb():
    with pytest.raises(OtptError, match="mode 'L'; expected RGB"):
        make_views(Image.new("L", (5, 5)), ViewRecipe(), Preprocessing(64), seed=0, image_id="")


@pytest.mark.parametrize(
    "change", [{"interpolation": "nearest"}, {"resize_mode": "crop"}, {"mean": (0.5,)}, {"std": (0.0, 1.0, 1.0)}]
)
def test_bad_preprocessing(change):
    with pytest.raises(OtptError):
        Preprocessing(64, **change)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n_views": 0}, "views"),
        ({"n_views": 2.0}, "views"),
        ({"n_views": True}, "views"),
        ({"augmix": "yes"}, "augmix"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.5, 0.1)}, "crop_scale"),
        ({"crop_scale": (0.5, 1.5)}, "crop_scale"),
        ({"crop_scale": 0.5}, "crop_scale"),
        ({"crop_scale": (float("nan"), 1.0)}, "crop_scale"),
        ({"crop_ratio": (0.0, 1.0)}, "crop_ratio"),
        ({"crop_ratio": (2.0, 1.0)}, "crop_ratio"),
        ({"crop_ratio": (1.0, float("inf"))}, "crop_ratio"),
        ({"crop_ratio": ("a", "b")}, "crop_ratio"),
        ({"flip": 1.1}, "flip"),
        ({"flip": float("nan")}, "flip"),
        ({"flip": None}, "flip"),
        ({"noise": -0.1}, "noise"),
        ({"noise": float("inf")}, "noise"),
        ({"noise": None}, "noise"),
    ],
)
def test_a_bad_recipe_says_what_is_wrong(options, word):
    with pytest.raises(OtptError, match=word):
        ViewRecipe(**options)


def test_the_key_tells_recipes_apart():
    recipes = [
        ViewRecipe(),
        ViewRecipe(n_views=32),
        ViewRecipe(augmix=False),
        ViewRecipe(crop_scale=(0.5, 1.0)),
        ViewRecipe(crop_ratio=(1.0, 1.0)),
        ViewRecipe(flip=0.0),
        ViewRecipe(noise=0.1),
    ]
    assert len({r.key for r in recipes}) == len(recipes)
    assert ViewRecipe(crop_scale=(0.08, 1), flip=0.5).key == ViewRecipe().key  # 1 and 1.0 are the same
    assert ViewRecipe().kind == ViewRecipe(n_views=9, rounds=(3,)).kind == ViewRecipe(n_views=1).key


def test_noise_is_gaussian_on_pixels_and_not_clamped():
    image, numbers = Image.new("RGB", (64, 64), "white"), Preprocessing(64)
    plain, noisy, fewer = (
        make_views(image, ViewRecipe(n_views=n, noise=noise), numbers, seed=3, image_id="p")
        for n, noise in ((6, 0.0), (6, 0.25), (2, 0.25))
    )
    noise = (noisy - plain) * np.array(numbers.std, np.float32)[:, None, None]
    assert noise.std() == pytest.approx(0.25, rel=0.01)
    assert noise[0].mean() == pytest.approx(0, abs=0.01)
    assert (noise[0] > 0.3).mean() == pytest.approx(0.115, abs=0.01), "white is not the brightest"
    np.testing.assert_array_equal(noisy[:2], fewer)
    for seed, name in ((3, "q"), (4, "p")):
        other = make_views(image, ViewRecipe(n_views=1, noise=0.25), numbers, seed=seed, image_id=name)
        assert abs(np.corrcoef(noise[0].ravel(), (other - plain)[0].ravel())[0, 1]) < 0.05


@pytest.mark.parametrize(("flip", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_flip_probability_at_its_ends(flip, share):
    """With the whole image as every crop, a view is the resized image or its mirror image."""
    image, numbers = _photograph(64, 64), Preprocessing(64)
    recipe = ViewRecipe(n_views=5, augmix=False, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=flip)
    views = make_views(image, recipe, numbers, seed=0, image_id="")
    for view in views[1:]:
        np.testing.assert_array_equal(view, views[0][:, :, ::-1] if share else views[0])


@pytest.mark.parametrize("number", [3.5, 0, -1, True, "8", None])
def test_a_number_of_views_that_is_none_is_named_in_words(number: object) -> None:
    with pytest.raises(OtptError, match=r"The number of views is .*; expected a whole number from 1") as refused:
        ViewRecipe(n_views=number)  # type: ignore[arg-type]
    assert "n_views" not in str(refused.value)
