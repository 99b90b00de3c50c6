"""A tiny classifier and images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

import otpt


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> otpt.Classifier:
    folder = tmp_path_factory.mktemp("model")
    open_clip_local_dir(folder)
    return otpt.load(f"local-dir:{folder}", method="zero-shot", device="cpu", views=2, classes=["cat", "dog"])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Folder of five images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(5):
        values = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(values).resize((80, 60)).save(folder / f"{i}.png")
    return folder
