"""What the tests of the command line share: a tiny model, images, and a terminal of a given width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracles.models.tiny import open_clip_local_dir
from PIL import Image


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    open_clip_local_dir(folder)
    return f"local-dir:{folder}"


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for i in range(3):
        values = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(values).resize((80, 60)).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the output a terminal of so many columns, without colours."""

    def set_width(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")

    return set_width
