"""The wheel is reproducible: built twice from the same source, it has the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
BUILD = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"


def build(source: Path, folder: Path) -> Path:
    """The wheel of a copy of the source, so that neither its place nor its times can matter; no network is needed."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.strip().splitlines()[-1]


def test_the_wheel_has_the_same_bytes_twice(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    wheels = []
    for name in ("first", "a-second-place"):
        source = tmp_path / name
        source.mkdir()
        for each in ("pyproject.toml", "README.md", "LICENSE"):
            (source / each).write_bytes((ROOT / each).read_bytes())
        shutil.copytree(
            ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
        )
        wheels.append(build(source, tmp_path / f"wheel-{name}"))
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
    assert {
        "otpt/backbones/pocket/pocket.safetensors",
        "otpt/backbones/pocket_photo/pocket_photo.safetensors",
        "otpt/backbones/pocket_photo/MODEL_CARD.md",
        "otpt/data/photographs/cat.jpg",
        "otpt/data/photographs/README.md",
    } <= set(names)
    assert wheels[0].stat().st_size <= 45e6
    assert {"otpt_medical/medclip.py", "otpt_medical/methods.toml", "otpt_medical/py.typed", "otpt_ray/pool.py"} <= set(
        names
    )
    assert not [name for name in names if name.startswith(("tests", "benchmarks")) or "__pycache__" in name]
