"""FPT's frozen ViT in small."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.medical_bench import write_frozen_vit

from otpt.methods.fpt import FrozenViT, load_frozen_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frozen_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def frozen(vit: Path) -> FrozenViT:
    return load_frozen_vit(str(vit), device="cpu", size=48)
