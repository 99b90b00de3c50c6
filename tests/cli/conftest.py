"""A tiny model, images and a run for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

from otpt.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    open_clip_local_dir(folder)
    return f"local-dir:{folder}"


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders cat and dog with four images each."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(8):
        values = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        path = folder / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        exif = Image.Exif()
        if i == 0:
            exif[0x0112] = 6  # its camera lay on its side
        Image.fromarray(values).resize((80, 60)).save(path, exif=exif)
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, model: str, images: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["evaluate", str(images), "--backbone", model, "--methods", "zero-shot", "o-tpt", "--views", "2"]
    assert main([*words, "--out", str(folder), "--no-cache", "--save-probabilities", "--seeds", "0", "1"]) == 0
    return folder


@pytest.fixture
def otpt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return call
