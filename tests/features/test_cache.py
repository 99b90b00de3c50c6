"""The feature cache: the same bytes with and without it, the image tower is used once, damaged entries never."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.runs.evaluation_bench import RECIPE, backbone, dataset, files, settings, write_images

from otpt.backbones import Backbone, ClipBackbone
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.features import FeatureCache, default_cache_folder
from otpt.features.cache import feature_key

pytestmark = pytest.mark.slow


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_images(tmp_path / "images", 5)


def no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Backbone, pixels: torch.Tensor, **_: object) -> torch.Tensor:
        raise AssertionError("the image tower was used")

    monkeypatch.setattr(ClipBackbone, "encode_pixels", refuse)


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, **_: object) -> None:
        raise AssertionError(f"{source} was read")

    monkeypatch.setattr("otpt.decoders.open_with_digest", refuse)


@pytest.mark.equality
def test_cold_warm_and_without_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path / "cache")
    evaluate(dataset(5), backbone(), settings(), out=tmp_path / "without")
    evaluate(dataset(5), backbone(), settings(), out=tmp_path / "cold", cache=cache)
    no_encoding(monkeypatch)
    evaluate(dataset(5), backbone(), settings(), out=tmp_path / "warm", cache=cache)
    assert files(tmp_path / "cold") == files(tmp_path / "without")
    assert files(tmp_path / "warm") == files(tmp_path / "without")
    assert cache.info().entries == 5


@pytest.mark.equality
def test_other_methods_prompts_and_names_need_neither_tower_nor_images(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    evaluate(dataset(images=paths), backbone(), settings(), out=tmp_path / "first", cache=cache)
    no_encoding(monkeypatch)
    no_reading(monkeypatch)
    more = settings(methods=["c-tpt", "zero-shot"], prompts=["an example of", "a photo of a"])
    evaluate(dataset(images=paths), backbone(), more, out=tmp_path / "more", cache=cache)
    # one view is the first of twelve
    evaluate(dataset(images=paths), backbone(), settings(methods=["zero-shot"]), out=tmp_path / "zs", cache=cache)
    monkeypatch.undo()
    evaluate(dataset(images=paths), backbone(), more, out=tmp_path / "again")
    assert files(tmp_path / "more") == files(tmp_path / "again")


def test_an_image_written_just_now_is_not_trusted_by_its_looks(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the clock's step would leave size and time as they are."""
    cache = FeatureCache(tmp_path / "cache")
    os.utime(paths[0])
    evaluate(dataset(images=paths[:1]), backbone(), settings(), out=tmp_path / "one", cache=cache)
    no_reading(monkeypatch)
    with pytest.raises(AssertionError, match=r"000\.png was read"):
        evaluate(dataset(images=paths[:1]), backbone(), settings(), out=tmp_path / "two", cache=cache)


def test_every_fact_is_in_the_key() -> None:
    model = backbone()
    base = feature_key(model, RECIPE, 0, "full", "abc")
    assert feature_key(model, replace(RECIPE, n_views=3), 0, "full", "abc") == base
    others = {
        feature_key(model, replace(RECIPE, augmix=False), 0, "full", "abc"),
        feature_key(model, replace(RECIPE, flip=0.25), 0, "full", "abc"),
        feature_key(model, RECIPE, 1, "full", "abc"),
        feature_key(model, RECIPE, 0, "float16", "abc"),
        feature_key(model, RECIPE, 0, "full", "abd"),
    }
    assert len(others | {base}) == 6


@pytest.mark.equality
def test_a_damaged_entry_is_recomputed(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    evaluate(dataset(4), backbone(), settings(), out=tmp_path / "first", cache=cache)
    entries = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.features")}
    damages = (
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:-9],
        lambda _: b"",
        lambda d: b"{" + d,
    )
    for damage, (path, data) in zip(damages, entries.items(), strict=True):
        path.write_bytes(damage(data))
    evaluate(dataset(4), backbone(), settings(), out=tmp_path / "second", cache=cache)
    assert {path: path.read_bytes() for path in entries} == entries
    assert cache.info().entries == 4
    cache.clear()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_another_keys_entry_is_not_taken(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    keys = [f"{i:064x}" for i in range(2)]
    for i, key in enumerate(keys):
        cache.put(key, np.full((4, 16), i, np.float32))
    first, second = (cache.folder / "features" / key[:2] / f"{key}.features" for key in keys)
    first.write_bytes(second.read_bytes())
    assert cache.get(keys[0]) is None
    assert cache.get(keys[1]) is not None


def test_the_bound_is_kept_and_the_oldest_go(tmp_path: Path) -> None:
    entry = np.zeros((4, 8), np.float32)
    probe = FeatureCache(tmp_path / "probe")
    probe.put("ab" * 32, entry)
    size = probe.info().bytes
    cache = FeatureCache(tmp_path / "cache", max_bytes=5 * size)
    keys = [f"{i:02d}" * 32 for i in range(9)]
    for i, key in enumerate(keys[:5]):
        cache.put(key, entry + i)
        os.utime(cache._path("features", key), (1000 + i, 1000 + i))
    assert cache.get(keys[0]) is not None  # used again, so no longer the oldest
    for key in keys[5:8]:
        cache.put(key, entry)
    assert cache.info().bytes <= 5 * size
    assert cache.get(keys[0]) is not None
    assert [cache.get(key) is None for key in keys[1:4]] == [True, True, True]
    with pytest.raises(OtptError, match="size of the feature cache is 0"):
        FeatureCache(tmp_path, max_bytes=0)


def test_concurrent_writers_and_readers(tmp_path: Path) -> None:
    value = np.random.default_rng(0).random((64, 32), dtype=np.float32)
    cache = FeatureCache(tmp_path / "cache", max_bytes=60_000)  # so small that entries go all the time
    wrong: list[str] = []

    def work(number: int) -> None:
        own = FeatureCache(tmp_path / "cache", max_bytes=60_000)
        for i in range(60):
            key = f"{(i * 7 + number) % 10:02d}" * 32
            own.put(key, value)
            found = own.get(key)
            if found is not None and not np.array_equal(found, value):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.info().entries >= 1


@pytest.mark.equality
def test_a_cache_that_cannot_be_written_is_said_once_and_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = FeatureCache(tmp_path / "file" / "cache")
    with pytest.warns(UserWarning, match="feature cache is disabled") as caught:
        evaluate(dataset(3), backbone(), settings(), out=tmp_path / "run", cache=cache)
    assert len(caught) == 1
    evaluate(dataset(3), backbone(), settings(), out=tmp_path / "other")
    assert files(tmp_path / "run") == files(tmp_path / "other")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTPT_CACHE", str(tmp_path / "own"))
    assert default_cache_folder() == tmp_path / "own"
    monkeypatch.delenv("OTPT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_cache_folder() == tmp_path / "xdg" / "otpt"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_cache_folder().parts[-3:] == ("Library", "Caches", "otpt")
