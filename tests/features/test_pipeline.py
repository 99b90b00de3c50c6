"""The feature pipeline: order, the same bits with any number of threads, bad images, bounded look-ahead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.runs.evaluation_bench import RECIPE, backbone, image, write_images
from PIL import Image
from torch import Tensor

from otpt.backbones import ClipBackbone
from otpt.errors import OtptError
from otpt.features import EncodedImage, FeatureCache, FeaturePipeline, ImageTask
from otpt.features.cache import file_key
from otpt.images import ImageSource, open_image, open_with_digest
from otpt.views import ViewRecipe, make_views

SOME = ViewRecipe(n_views=4)


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    return write_images(tmp_path / "images", 7)


def tasks(sources: Sequence[ImageSource], *recipes: ViewRecipe, seed: int = 5, **more: Any) -> list[ImageTask]:
    return [
        ImageTask(i, partial(_as_it_is, source), recipes or (SOME,), seed, **more) for i, source in enumerate(sources)
    ]


def _as_it_is(source: ImageSource) -> ImageSource:
    return source


def good(found: EncodedImage | OtptError) -> EncodedImage:
    assert isinstance(found, EncodedImage)
    return found


def literal(source: ImageSource, recipe: ViewRecipe = SOME, *, seed: int = 5, name: str | None = None) -> Tensor:
    """Views of one image, through the image tower alone."""
    model = backbone()
    views = make_views(
        open_image(source), recipe, model.preprocessing, seed=seed, image_id=name or open_with_digest(source)[1]
    )
    return model.encode_pixels(torch.from_numpy(views), chunk=model.chunk)


@pytest.mark.equality
@pytest.mark.parametrize("threads", [0, 3, None])
def test_features_do_not_depend_on_the_threads(images: list[Path], threads: int | None) -> None:
    found = list(FeaturePipeline(backbone(), threads=threads)(tasks(images)))
    assert [task.key for task, _ in found] == list(range(7))
    for path, (_, encoded) in zip(images, found, strict=True):
        assert torch.equal(good(encoded).features[SOME.kind], literal(path))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_bad_image_yields_its_error_and_the_rest_go_on(images: list[Path], threads: int, tmp_path: Path) -> None:
    sources = [images[0], tmp_path / "missing.png", images[1], b"no image", images[2]]
    found = [encoded for _, encoded in FeaturePipeline(backbone(), threads=threads)(tasks(sources))]
    assert [isinstance(encoded, OtptError) for encoded in found] == [False, True, False, True, False]
    assert "missing.png" in str(found[1])
    assert torch.equal(good(found[4]).features[SOME.kind], literal(images[2]))


@pytest.mark.equality
@pytest.mark.parametrize("cached", [False, True])
def test_given_ids_replace_the_digests(images: list[Path], tmp_path: Path, cached: bool) -> None:
    cache = FeatureCache(tmp_path / "cache") if cached else None
    given = [ImageTask(name, partial(_as_it_is, images[0]), (SOME,), 0, image_id=name) for name in ("a", "b")]
    one, two = (good(found).features[SOME.kind] for _, found in FeaturePipeline(backbone(), cache=cache)(given))
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1], two[1])
    assert torch.equal(two, literal(images[0], seed=0, name="b"))
    assert cache is None or cache.info().entries == 0  # entries are found by content


@pytest.mark.parametrize(("threads", "most"), [(0, 1), (2, 4)])
def test_look_ahead_is_bounded(images: list[Path], threads: int, most: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[ImageTask]:
        while True:
            taken.append(len(taken))
            yield tasks([images[0]], RECIPE)[0]

    found = FeaturePipeline(backbone(), threads=threads)(endless())
    at_once = -(-backbone().views_at_once // RECIPE.n_views)  # images that the image tower takes together
    for done in range(1, 4):
        next(found)
        time.sleep(0.02)
        assert len(taken) <= done + most + at_once
    found.close()


def test_stopping_early_leaves_no_threads(images: list[Path]) -> None:
    before = set(threading.enumerate())
    found = FeaturePipeline(backbone(), threads=3)(tasks(images * 9, RECIPE))
    next(found)
    found.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("otpt-features") and each not in before]


def test_a_fault_of_ours_is_not_hidden(images: list[Path]) -> None:
    def broken() -> ImageSource:
        raise ZeroDivisionError

    for threads in (0, 2):
        with pytest.raises(ZeroDivisionError):
            list(FeaturePipeline(backbone(), threads=threads)([ImageTask(0, broken, (SOME,), 0)]))


@pytest.mark.equality
def test_several_kinds_of_views_of_one_image(images: list[Path], tmp_path: Path) -> None:
    crops = ViewRecipe(n_views=3, augmix=False)
    cache = FeatureCache(tmp_path / "cache")
    list(FeaturePipeline(backbone(), cache=cache)(tasks(images[:2], crops)))
    for store in (None, cache):  # with the cache, of each image one kind is there and the other is encoded
        found = list(FeaturePipeline(backbone(), cache=store)(tasks(images[:2], SOME, crops)))
        for path, (_, encoded) in zip(images, found, strict=False):
            for recipe in (SOME, crops):
                assert torch.equal(good(encoded).features[recipe.kind], literal(path, recipe))
    assert cache.info().entries == 4


@pytest.mark.equality
def test_float16_features_are_rounded_with_and_without_the_cache(images: list[Path], tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    for store in (None, cache, cache):
        pipeline = FeaturePipeline(backbone(), cache=store, features="float16")
        for path, (_, encoded) in zip(images, pipeline(tasks(images)), strict=True):
            assert torch.equal(good(encoded).features[SOME.kind], literal(path).half().float())


def test_the_image_is_handed_on_only_if_it_is_asked_for(images: list[Path], tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    for keep in (False, True):
        ((_, encoded),) = FeaturePipeline(backbone(), cache=cache)(tasks(images[:1], keep_image=keep))
        assert (good(encoded).opened is not None) == keep
        opened, digest = good(encoded).open()
        assert digest == open_with_digest(images[0])[1]
        np.testing.assert_array_equal(np.asarray(opened), np.asarray(open_image(images[0])))


def test_a_file_that_looks_as_it_did_is_not_read(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache(tmp_path / "cache")

    def run() -> list[Tensor]:
        pipeline = FeaturePipeline(backbone(), cache=cache)
        return [good(found).features[SOME.kind] for _, found in pipeline(tasks(images))]

    first = run()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the image tower was used")

    monkeypatch.setattr(ClipBackbone, "encode_pixels", refuse)
    with monkeypatch.context() as unread:
        unread.setattr("otpt.decoders.open_with_digest", refuse)
        assert all(map(torch.equal, run(), first))
    image(99).save(images[0])
    with pytest.raises(AssertionError, match="image tower"):
        run()


def test_a_file_with_another_content_of_the_same_size_and_time_is_read(images: list[Path], tmp_path: Path) -> None:
    """As ``cp -p``, ``rsync -t`` and ``tar`` leave them: they set the time of change back."""
    before = images[0].stat()
    key = file_key(images[0])
    assert key is not None
    assert file_key(images[0]) == key
    while images[0].stat().st_ctime_ns == before.st_ctime_ns:  # clocks of file systems tick
        images[0].write_bytes(bytes(before.st_size))
        os.utime(images[0], ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert images[0].stat().st_mtime_ns == before.st_mtime_ns
    assert file_key(images[0]) != key


def test_views_of_two_contents_are_not_mixed(images: list[Path], tmp_path: Path) -> None:
    """The first round comes from the cache; before the second one, the file is another one."""
    cache = FeatureCache(tmp_path / "cache")
    recipe = ViewRecipe(n_views=6, rounds=(4,))
    pipeline = FeaturePipeline(backbone(), cache=cache)
    for changed in (False, True):
        ((encoded,),) = pipeline.batches(tasks(images[:1], recipe))
        if not changed:
            pipeline.store([encoded])
            continue
        image(99).save(images[0])
        encoded.missing, encoded.opened = {recipe.kind: 6}, None
        pipeline.encode_more([encoded])
        assert isinstance(encoded.error, OtptError)
    ((_, found),) = pipeline(tasks(images[:1], recipe))
    assert torch.equal(good(found).features[recipe.kind], literal(images[0], recipe))


def test_large_images_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("RGB", (2100, 2000)).save(path)
    recipe = ViewRecipe(n_views=6, rounds=(2,))
    ((encoded,),) = FeaturePipeline(backbone()).batches(tasks([path], recipe))
    assert encoded.opened is None
    encoded.missing = {recipe.kind: 6}
    FeaturePipeline(backbone()).encode_more([encoded])
    assert torch.equal(encoded.features[recipe.kind], literal(path, recipe))


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0" * 32])
def test_a_damaged_digest_is_replaced(images: list[Path], tmp_path: Path, damage: bytes) -> None:
    cache = FeatureCache(tmp_path / "cache")
    list(FeaturePipeline(backbone(), cache=cache)(tasks(images[:1])))
    (file,) = (cache.folder / "digests").glob("*/*")
    file.write_bytes(damage)
    ((_, found),) = FeaturePipeline(backbone(), cache=cache)(tasks(images[:1]))
    assert torch.equal(good(found).features[SOME.kind], literal(images[0]))
    assert cache.digest(file.stem) == open_with_digest(images[0])[1]


def test_an_impossible_number_of_threads() -> None:
    with pytest.raises(OtptError, match="number of threads is -1; expected 0 or more"):
        FeaturePipeline(backbone(), threads=-1)


def test_the_orientation_is_part_of_the_key_of_a_file(tmp_path: Path) -> None:
    path, cache = tmp_path / "photo.png", FeatureCache(tmp_path / "cache")
    exif = Image.Exif()
    exif[0x0112] = 6
    image(3).save(path, exif=exif)
    os.utime(path, (0, 0))  # an old file is known by its name
    for upright in (True, False, True, False):
        ((_, found),) = FeaturePipeline(backbone(), cache=cache)(tasks([path], upright=upright))
        expected = literal(open_image(path, upright=upright))
        torch.testing.assert_close(good(found).features[SOME.kind], expected, rtol=0, atol=1e-6)
    assert cache.info().entries == 2
