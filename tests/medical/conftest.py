"""FPT's frozen ViT in small."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.medical_models import write_vit

from otpt.medical.fpt import FrozenViT, load_frozen_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vit")
    write_vit(place, hidden_size=32)
    return place


@pytest.fixture(scope="module")
def frozen(vit: Path) -> FrozenViT:
    return load_frozen_vit(str(vit), device="cpu", size=48)
