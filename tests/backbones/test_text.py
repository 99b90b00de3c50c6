"""Text towers of every kind: tokens, the canonical causal form, and embeddings in place of tokens."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.model import CustomTextCLIP
from oracles.models.tiny import randomise, tiny_backbone, tiny_config
from oracles.models.towers import bert, coca, custom_text, siglip, wrap
from torch import Tensor

from otpt.backbones import Backbone, CausalTower
from otpt.backbones.causal import encode_causal
from otpt.errors import OtptError

TEXTS = ["a photo of a cat.", "x", "a photo of a red panda (ailurus fulgens).", "2012 bmw m3 coupe"]


def test_tokens_are_those_of_clip() -> None:
    ids = tiny_backbone().text.tokenize(["a photo of a", ".", "x", "A  photo\nOF a"])
    assert ids.shape == (4, 77)
    assert ids.dtype == torch.int64
    assert ids[0, :7].tolist() == [49406, 320, 1125, 539, 320, 49407, 0]
    assert ids[1, :3].tolist() == [49406, 269, 49407]
    assert ids[2, :3].tolist() == [49406, 343, 49407]
    assert torch.equal(ids[3], ids[0])


def test_a_text_that_fills_the_context_is_taken_and_one_more_token_is_refused() -> None:
    text = tiny_backbone().text
    assert text.tokenize(["x " * 75])[0, -1] == 49407
    with pytest.raises(OtptError, match=r"'x x .*\.\.\.' exceeds the 77 tokens"):
        text.tokenize(["fine", "x " * 76])


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_canonical_form_is_the_models_own_text_encoder(precision: str) -> None:
    backbone = tiny_backbone("vit", precision)
    tower = backbone.text.causal
    assert isinstance(tower, CausalTower)
    assert (tower.heads, tower.activation, tower.end_token, len(tower.layers)) == (4, "quick_gelu", None, 3)
    ids = backbone.text.tokenize(TEXTS)
    expected = backbone.text._model.encode_text(ids)
    found = encode_causal(tower, backbone.text.embed(ids), ids.argmax(dim=-1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if precision == "float64" else 2e-5)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ({}, True),
        ({"proj_bias": True}, True),
        ({"pool_type": "eos", "eos_id": 49407}, True),
        ({"act_kwargs": {}}, True),
        ({"block_type": "custom"}, True),
        ({"norm_kwargs": {"eps": 1e-3}}, True),
        ({"ls_init_value": 0.1}, False),
        ({"no_causal_mask": True}, False),
        ({"pool_type": "last"}, False),
        ({"pool_type": "first"}, False),
        ({"embed_cls": True, "pad_id": 0}, False),
        ({"qk_norm": True}, False),
        ({"scale_fc": True}, False),
    ],
)
def test_only_towers_that_agree_are_canonical(text: dict[str, Any], canonical: bool) -> None:
    assert (wrap(custom_text(**text)).text.causal is not None) == canonical


@pytest.mark.parametrize(
    ("quick", "kwargs", "name"), [(False, None, "gelu"), (False, {"approximate": "tanh"}, "gelu_tanh")]
)
def test_activations_are_told_apart(quick: bool, kwargs: dict[str, Any] | None, name: str) -> None:
    config = tiny_config() | {"quick_gelu": quick}
    config["text_cfg"]["act_kwargs"] = kwargs
    tower = wrap(randomise(CustomTextCLIP(**config))).text.causal
    assert tower is not None
    assert tower.activation == name


@pytest.fixture(params=["clip", "siglip", "coca", "bert"])
def backbone(request: pytest.FixtureRequest, tmp_path: Path) -> Backbone:
    kinds = {"clip": tiny_backbone, "siglip": siglip, "coca": coca, "bert": lambda: bert(tmp_path)}
    made: Backbone = kinds[request.param]()
    return made


TWO = ["a photo of a cat.", "a red panda"]


def test_own_embeddings_give_the_models_own_features(backbone: Backbone) -> None:
    text = backbone.text
    ids = text.tokenize(TWO)
    assert ids.shape == (2, text.context_length)
    embeddings = text.embed(ids)
    assert embeddings.shape == (2, text.context_length, text.width)
    expected = text._model.encode_text(ids)
    assert expected.shape == (2, backbone.embed_dim)
    assert torch.equal(text.encode_embeddings(ids, embeddings), expected)
    assert not torch.allclose(expected[0], expected[1], atol=1e-2)  # the towers are not trivial


def test_gradient_in_the_embeddings_is_that_of_finite_differences(backbone: Backbone) -> None:
    text = backbone.text
    text._model.double()
    ids = text.tokenize(TWO)
    start = text.embed(ids).detach()
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = torch.linspace(-1, 1, backbone.embed_dim, dtype=torch.float64)

    def value(embeddings: Tensor) -> Tensor:
        return (text.encode_embeddings(ids, embeddings) * weights).sum()

    leaf = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf)
    step = 1e-6
    numeric = (value(start + step * direction) - value(start - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.equality
def test_threads_do_not_see_each_others_embeddings() -> None:
    text = tiny_backbone().text
    ids = text.tokenize(["a cat"])
    inputs = [text.embed(ids) + shift for shift in (0.0, 0.5, -0.5, 1.0)]
    alone = [text.encode_embeddings(ids, embeddings) for embeddings in inputs]
    together: list[list[Tensor]] = [[] for _ in inputs]

    def work(index: int) -> None:
        for _ in range(10):
            together[index].append(text.encode_embeddings(ids, inputs[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, found in zip(alone, together, strict=True):
        assert len(found) == 10
        assert all(torch.allclose(features, expected, atol=1e-5) for features in found)
    assert torch.equal(text.embed(ids), inputs[0])  # and nothing is left behind
