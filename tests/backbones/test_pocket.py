"""The embedded model."""

from __future__ import annotations

import pytest
import torch

from otpt.backbones import QuickGeluWarning, load_backbone
from otpt.backbones.pocket import load_pocket
from otpt.backbones.prompted_tower import PromptedTower


def pixels(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(5))


def test_untrained_token_embeddings_are_the_mean() -> None:
    table = load_pocket().model.get_parameter("token_embedding.weight")
    unknown = (table == table.mode(dim=0).values).all(dim=1)  # rows that were never trained
    assert 40_000 < int(unknown.sum()) < 49_000
    torch.testing.assert_close(table[unknown][0], table[~unknown].mean(0))


def test_prompts_enter_the_blocks() -> None:
    tower = PromptedTower(load_backbone("pocket", device="cpu"))
    assert (tower.depth, tower.width) == (2, 192)
    features, gradient = tower.linearise(tower.embed(pixels(2)), torch.zeros(2, 3, 192))
    assert bool((gradient(torch.ones_like(features)) != 0).any(dim=-1).all())


def test_quick_gelu_is_warned_of() -> None:
    with pytest.warns(QuickGeluWarning, match="pocket"):
        backbone = load_backbone("pocket", device="cpu", quick_gelu=True)
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"
    assert backbone.fingerprint != load_backbone("pocket", device="cpu").fingerprint
