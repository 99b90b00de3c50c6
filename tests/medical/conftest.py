"""FPT's frozen ViT and MedCLIP's towers in small."""

from __future__ import annotations

import pytest
from oracles.data.medical_bench import frozen, vit
from oracles.models.medical import BERT, SWIN

from otpt_medical import medclip

__all__ = ["frozen", "vit"]


@pytest.fixture(autouse=True)
def small_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medclip, "SWIN", SWIN)
    monkeypatch.setattr(medclip, "BERT", BERT)
