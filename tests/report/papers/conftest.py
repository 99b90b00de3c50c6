"""What plans are made for: a data root with one data set, and a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.data.data_files import write_dtd
from oracles.models.tiny import open_clip_local_dir


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root that holds DTD and nothing else."""
    root = tmp_path_factory.mktemp("data")
    write_dtd(root)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    open_clip_local_dir(folder)
    return str(folder)
