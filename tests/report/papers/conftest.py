"""What plans are made for: a data root with one data set, and a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracles.data_files import put_images
from oracles.models import open_clip_local_dir

from otpt.data.classes import builtin_class_list

NAMES = builtin_class_list("dtd").names
FILES = [f"{name}/{name}_{i}.jpg" for name in NAMES for i in range(36)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root that holds DTD and nothing else."""
    root = tmp_path_factory.mktemp("data")
    put_images(root / "dtd/images", FILES)
    rows = [[file, i // 36, NAMES[i // 36]] for i, file in enumerate(FILES)]
    (root / "dtd/split_zhou_DescribableTextures.json").write_text(json.dumps({"test": rows}))
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    open_clip_local_dir(folder)
    return str(folder)
