"""Images and data sets for the tests of the medical systems."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from oracles.models.medical import write_vit
from oracles.models.tiny import tiny_backbone
from PIL import Image

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt_medical.frozen_vit import FrozenViT, load_frozen_vit


@cache
def tiny(precision: str = "float32") -> Backbone:
    """A tiny CLIP, made once."""
    return tiny_backbone(precision=precision)


def write_frozen_vit(folder: Path) -> Path:
    """FPT's frozen ViT in small, as files."""
    write_vit(folder, hidden_size=32)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the folders of tests that import it, as :func:`frozen`."""
    return write_frozen_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def frozen(vit: Path) -> FrozenViT:
    return load_frozen_vit(str(vit), device="cpu", size=48)


def image(seed: int, tint: int = 0) -> Image.Image:
    """40 × 36 pixels; ``tint`` 0 … 2 makes one colour bright, which a network can learn."""
    values = np.random.default_rng(seed).integers(0, 120, (6, 5, 3), dtype=np.uint8)
    values[..., tint % 3] += 130
    return Image.fromarray(values).resize((40, 36), Image.Resampling.BICUBIC)


def dataset(names: tuple[str, ...] = ("covid", "normal"), each: int = 4, name: str = "tiny", first: int = 0) -> Dataset:
    """``each`` images per class, in memory."""
    labels = [label for label in range(len(names)) for _ in range(each)]
    images = [image(first + i, label) for i, label in enumerate(labels)]
    ids = [f"{name}/{i}" for i in range(first, first + len(labels))]
    return Dataset(name, names, ids, labels, images.__getitem__)


def folder(path: Path, names: tuple[str, ...] = ("covid", "normal"), each: int = 3, first: int = 0) -> Path:
    """The same as a folder of class folders."""
    for label, name in enumerate(names):
        (path / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            image(first + label * each + i, label).save(path / name / f"{i}.png")
    return path
