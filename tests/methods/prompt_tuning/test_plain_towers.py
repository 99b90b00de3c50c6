"""Tuning on text towers that are not CLIP's, against one autograd graph from context to loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.methods.householder import literal_householder
from oracles.models.towers import bert, coca, siglip
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.methods import published_methods
from otpt.methods.state import prompt_state
from otpt.methods.tuner import tune
from otpt.prompts import Prompt, tokenize_prompts

NAMES = ["cat", "red panda", "photo of x"]


@pytest.fixture(params=["siglip", "coca", "bert"])
def backbone(request: pytest.FixtureRequest, tmp_path: Path) -> Backbone:
    kinds = {"siglip": siglip, "coca": coca, "bert": lambda precision: bert(tmp_path, precision)}
    made: Backbone = kinds[request.param](precision="float64")
    assert made.text.causal is None
    return made


@pytest.mark.parametrize("steps", [1, 2])
def test_o_tpt_on_any_text_tower(backbone: Backbone, steps: int) -> None:
    views = F.normalize(
        torch.randn(20, backbone.embed_dim, generator=torch.Generator().manual_seed(0)).double(), dim=-1
    )
    config = published_methods()["o-tpt"].override({"steps": steps}).tuning("fine-grained")
    found = tune(prompt_state(backbone, NAMES), views[None], [config])[config].logits[0].softmax(-1)

    tokens = tokenize_prompts(backbone.text, NAMES, Prompt())
    embeddings = backbone.text.embed(tokens.ids)
    context = torch.nn.Parameter(tokens.start.clone())
    optimiser = torch.optim.AdamW([context], lr=5e-3)

    def features() -> torch.Tensor:
        rows = embeddings.clone()
        for c, slots in enumerate(tokens.slots):
            rows[c, slots] = context
        return F.normalize(backbone.text.encode_embeddings(tokens.ids, rows), dim=-1)

    chosen = None
    for _ in range(steps):
        texts = features()
        logits = backbone.logit_scale * views @ texts.T
        if chosen is None:
            chosen = torch.distributions.Categorical(logits=logits).entropy().argsort()[:2]
        mean = logits[chosen].softmax(-1).mean(0)
        loss = -(mean * mean.log()).sum() + 18 * literal_householder(texts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        expected = (backbone.logit_scale * views[0] @ features().T).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (
        expected - (backbone.logit_scale * views[0] @ prompt_state(backbone, NAMES).text_features.T).softmax(-1)
    ).abs().max() > 1e-4
