"""Images and split files for tests of data sets. Real split files are used where they lie beside the repository."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image

from otpt.data import find_entry
from otpt.data.classes import builtin_class_list

REAL_SPLITS = Path(__file__).resolve().parents[3] / "../shared/data/splits"


DTD_FILES = [f"{name}/{name}_{i}.jpg" for name in builtin_class_list("dtd").names for i in range(36)]


def jpeg(colour: tuple[int, int, int] = (200, 30, 60)) -> bytes:
    """An image of 8 × 8 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "JPEG")
    return buffer.getvalue()


JPEG = jpeg()


def write_dtd(root: Path) -> None:
    """A whole DTD below a data root: 36 images of each class, all of them for tests."""
    put_images(root / "dtd/images", DTD_FILES)
    rows = [[file, i // 36, file.partition("/")[0]] for i, file in enumerate(DTD_FILES)]
    (root / "dtd/split_zhou_DescribableTextures.json").write_text(json.dumps({"test": rows}))


def touch(folder: Path, files: Iterable[str]) -> None:
    """Empty files: enough for what only looks at names, and fast enough for 50 000."""
    made = set()
    for file in files:
        path = f"{folder}/{file}"
        parent = os.path.dirname(path)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def put_images(folder: Path, files: Iterable[str]) -> None:
    """Real images."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG)


def split_text(name: str) -> str:
    """The split file of a data set: the real one, or one of the published size for the two that are not at hand."""
    entry = find_entry(name)
    assert entry is not None
    if name not in ("food101", "sun397"):
        if not REAL_SPLITS.is_dir():
            pytest.skip("the real split files are not beside the repository")
        return (REAL_SPLITS / entry.split_file).read_text(encoding="utf-8")
    classes = entry.class_list()
    each = {"food101": 300, "sun397": 50}[name]
    pairs = list(zip(classes.folders, classes.names, strict=True))
    rows = [[f"{folder}/{i}.jpg", k, called] for k, (folder, called) in enumerate(pairs) for i in range(each)]
    return json.dumps({"train": rows[:1], "val": rows[1:2], "test": rows})
