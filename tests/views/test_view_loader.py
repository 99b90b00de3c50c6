"""The loader: order, equality under any number of workers, bad pictures, bounded look-ahead."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from otpt.errors import OtptError
from otpt.views import ViewLoader, ViewRecipe, make_views, open_picture, picture_digest


class Numbers:
    size = 64
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)
    interpolation = "bicubic"
    resize_mode = "shortest"


RECIPE = ViewRecipe(n_views=4)


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(7):
        path = tmp_path / f"{i}.png"
        Image.fromarray(rng.integers(0, 256, (60 + i, 80, 3), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


@pytest.mark.equality
@pytest.mark.parametrize("workers", [0, 1, 3, 16])
def test_results_do_not_depend_on_the_workers(pictures, workers):
    loaded = list(ViewLoader(pictures, RECIPE, Numbers(), seed=5, workers=workers))
    assert [index for index, _ in loaded] == list(range(7))
    for path, (_, views) in zip(pictures, loaded, strict=True):
        expected = make_views(open_picture(path), RECIPE, Numbers(), seed=5, picture_id=picture_digest(path))
        np.testing.assert_array_equal(views, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_picture_yields_its_error_and_the_rest_go_on(pictures, workers, tmp_path):
    sources = [pictures[0], tmp_path / "missing.png", pictures[1], b"no picture", pictures[2]]
    loaded = [views for _, views in ViewLoader(sources, RECIPE, Numbers(), seed=0, workers=workers)]
    assert [isinstance(views, OtptError) for views in loaded] == [False, True, False, True, False]
    assert "missing.png" in str(loaded[1])


@pytest.mark.equality
@pytest.mark.parametrize("workers", [0, 2])
def test_given_ids_replace_the_digests(pictures, workers):
    sources = [pictures[0], pictures[0]]
    (_, one), (_, two) = ViewLoader(sources, RECIPE, Numbers(), seed=0, picture_ids=["a", "b"], workers=workers)
    np.testing.assert_array_equal(one[0], two[0])
    assert not np.array_equal(one[1], two[1])
    expected = make_views(open_picture(pictures[0]), RECIPE, Numbers(), seed=0, picture_id="b")
    np.testing.assert_array_equal(two, expected)


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize("workers", [0, 2])
def test_as_many_ids_as_pictures(pictures, ids, workers):
    loader = ViewLoader(pictures[:2], RECIPE, Numbers(), seed=0, picture_ids=ids, workers=workers)
    with pytest.raises(OtptError, match="as many picture ids"):
        list(loader)


@pytest.mark.parametrize(("workers", "ahead", "most"), [(0, None, 1), (2, None, 4), (1, 1, 1), (2, 3, 3)])
def test_look_ahead_is_bounded(pictures, workers, ahead, most):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield pictures[0]

    iterator = iter(ViewLoader(endless(), RECIPE, Numbers(), seed=0, workers=workers, ahead=ahead))
    for done in range(1, 4):
        next(iterator)
        time.sleep(0.02)
        # Handed out so far, and no more than `most` beyond.
        assert len(taken) <= done + most
    iterator.close()


def test_stopping_early_leaves_no_threads(pictures):
    iterator = iter(ViewLoader(pictures, RECIPE, Numbers(), seed=0, workers=3))
    next(iterator)
    assert any(thread.name.startswith("otpt-views") for thread in threading.enumerate())
    iterator.close()
    assert not any(thread.name.startswith("otpt-views") for thread in threading.enumerate())


@pytest.mark.equality
def test_it_can_be_iterated_again_and_may_be_empty(pictures):
    loader = ViewLoader(pictures[:2], RECIPE, Numbers(), seed=0, workers=2)
    first, second = ([views for _, views in loader] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert list(ViewLoader([], RECIPE, Numbers(), seed=0, workers=2)) == []


def test_a_fault_of_ours_is_not_hidden(pictures, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("otpt.views.loader.make_views", broken)
    with pytest.raises(ZeroDivisionError):
        list(ViewLoader(pictures, RECIPE, Numbers(), seed=0, workers=2))


@pytest.mark.parametrize(("options", "word"), [({"workers": -1}, "workers"), ({"ahead": 0}, "ahead")])
def test_bad_settings(pictures, options, word):
    with pytest.raises(OtptError, match=word):
        ViewLoader(pictures, RECIPE, Numbers(), seed=0, **options)
