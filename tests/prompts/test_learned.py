"""Learned prompts: files in the official formats, contexts by class and by image, what is refused."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.methods.maple import maple_state
from oracles.models.tiny import tiny_backbone
from oracles.models.towers import siglip
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.methods import get_method
from otpt.methods.state import prompt_state
from otpt.methods.tuner import tune
from otpt.prompts import Linearisation, PlainEncoder, PrefixEncoder, Prompt, tokenize_prompts
from otpt.prompts.learned import (
    CocoopContext,
    CoopContext,
    MaplePrompts,
    context_alone,
    fingerprint,
    read_learned,
    read_learned_as,
    write_learned,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dassl(path: Path, state: dict[str, Tensor]) -> Path:
    """A checkpoint as Dassl's trainers save it, with the objects that its scheduler's state carries."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.002, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 50)
    content = {
        "state_dict": state,
        "epoch": 50,
        "optimizer": optimiser.state_dict(),
        "scheduler": {"last_epoch": 50, "successor": cosine},
        "val_result": None,
    }
    torch.save(content, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "dtype"), [(4, torch.float16), (16, torch.float32)])
def test_coop(tokens: int, dtype: torch.dtype, tmp_path: Path) -> None:
    context = normal(tokens, 512).to(dtype)
    names = torch.zeros(10, 76, 512, dtype=dtype)  # of the training's classes, as in the released files
    state = {"ctx": context, "token_prefix": names[:, :1].clone(), "token_suffix": names[:, tokens:].clone()}
    found = read_learned(dassl(tmp_path / "model.pth.tar-50", state))
    assert isinstance(found, CoopContext)
    assert found.vectors.dtype == torch.float32
    assert torch.equal(found.vectors, context.float())
    assert found.class_names is None


@pytest.mark.slow
def test_cocoop(tmp_path: Path) -> None:
    state = {
        "ctx": normal(4, 512).half(),
        "meta_net.linear1.weight": normal(32, 512, seed=1).half(),
        "meta_net.linear1.bias": normal(32, seed=2).half(),
        "meta_net.linear2.weight": normal(512, 32, seed=3).half(),
        "meta_net.linear2.bias": normal(512, seed=4).half(),
        "token_prefix": normal(3, 1, 512).half(),
        "token_suffix": normal(3, 72, 512).half(),
    }
    found = read_learned(dassl(tmp_path / "a", state))
    assert isinstance(found, CocoopContext)
    net = torch.nn.Sequential(torch.nn.Linear(512, 32), torch.nn.ReLU(), torch.nn.Linear(32, 512))
    own = zip(net.state_dict(), (name for name in state if name.startswith("meta")), strict=True)
    net.load_state_dict({name: state[theirs].float() for name, theirs in own})
    features = normal(3, 512, seed=9).double()
    with torch.no_grad():
        expected = torch.stack([state["ctx"].double() + net.double()(feature) for feature in features])
    torch.testing.assert_close(found.starts(features), expected)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [9, 3, 1])
def test_maple_of_both_kinds(depth: int, tmp_path: Path) -> None:
    """Base-to-novel (9 layers) and across data sets (3): the whole model is in the file, float16 and float32."""
    state = maple_state("ViT-B-16", depth, text_width=512)
    assert state["prompt_learner.ctx"].shape == (2, 512)
    assert state["prompt_learner.proj.weight"].shape == (768, 512)
    rest = {
        "prompt_learner.token_prefix": normal(3, 1, 512).half(),
        "prompt_learner.token_suffix": normal(3, 74, 512).half(),
        "image_encoder.proj": normal(768, 512).half(),
        "text_encoder.positional_embedding": normal(77, 512).half(),
        "logit_scale": torch.tensor(4.6).half(),
    }
    found = read_learned(dassl(tmp_path / "model.pth.tar-5", state | rest))
    assert isinstance(found, MaplePrompts)
    assert found.depth == depth
    assert {name: tensor.shape for name, tensor in found.state().items()} == {n: t.shape for n, t in state.items()}
    for name, tensor in found.state().items():
        assert torch.equal(tensor, state[name].float())
    if depth > 1:
        weight, bias = (state[f"prompt_learner.compound_prompt_projections.0.{part}"] for part in ("weight", "bias"))
        deep = state["prompt_learner.compound_prompts_text.0"]
        torch.testing.assert_close(found.visual()[1], deep @ weight.T + bias)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pth.tar-50"])
@pytest.mark.parametrize("kind", ["coop", "cocoop", "maple"])
def test_both_formats_give_back_what_was_written(suffix: str, kind: str, tmp_path: Path) -> None:
    save_file(maple_state("vit", 3), tmp_path / "m.safetensors")
    names, images = ("cat", "Hündin"), ("cat/1.jpg", "cat/2.jpg")
    net = (normal(2, 8), normal(2), normal(64, 2), normal(64))
    learned = {
        "coop": CoopContext(normal(2, 4, 64), names, images=images),
        "cocoop": CocoopContext(normal(4, 64), *net, images=images),
        "maple": replace(read_learned(tmp_path / "m.safetensors"), images=images),
    }[kind]
    path = tmp_path / f"again{suffix}"
    path.write_bytes(write_learned(path, learned))
    found = read_learned(path)
    assert type(found) is type(learned)
    assert fingerprint(found) == fingerprint(learned)
    assert getattr(found, "class_names", names) == names
    assert found.images == images
    if suffix != ".safetensors":  # plain data: also those who refuse objects can read it
        assert set(torch.load(path, weights_only=True)["state_dict"]) == set(learned.state())


@pytest.mark.slow
def test_the_context_alone(tmp_path: Path) -> None:
    """MaPLe's without deep prompts and image side, CoCoOp's without its net."""
    state = maple_state("vit", 3)
    found = context_alone(read_learned(dassl(tmp_path / "maple", state)))
    assert torch.equal(found.vectors, state["prompt_learner.ctx"].float())
    net = (normal(2, 8), normal(2), normal(64, 2), normal(64))
    assert torch.equal(context_alone(CocoopContext(normal(4, 64), *net)).vectors, normal(4, 64))
    own = CoopContext(normal(2, 4, 64), ("a", "b"))
    assert context_alone(own) is own


def learned_of(kind: str) -> CoopContext | CocoopContext | MaplePrompts:
    if kind == "coop":
        return CoopContext(normal(4, 64), ("cat", "dog"))
    if kind == "cocoop":
        return CocoopContext(normal(4, 64), normal(2, 8), normal(2), normal(64, 2), normal(64))
    return MaplePrompts(normal(3, 2, 64), normal(3, 32, 64), normal(3, 32))


@pytest.mark.parametrize("kind", ["coop", "cocoop", "maple"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_learned_prompts_are_compared_by_fingerprint(kind: str, copied: Callable[[object], object]) -> None:
    learned = learned_of(kind)
    assert learned == learned_of(kind) == copied(learned)
    assert len({learned, learned_of(kind), copied(learned)}) == 1
    assert learned.digest == fingerprint(learned)
    field = "text" if isinstance(learned, MaplePrompts) else "vectors"
    assert learned != replace(learned, **{field: getattr(learned, field) + 1})
    assert len({learned_of(each) for each in ("coop", "cocoop", "maple")}) == 3
    assert learned != learned.digest


@pytest.mark.parametrize("kind", ["coop", "cocoop", "maple"])
def test_read_learned_as(kind: str, tmp_path: Path) -> None:
    learned = learned_of(kind)
    path = tmp_path / f"{kind}.safetensors"
    path.write_bytes(write_learned(path, learned))
    assert read_learned_as(type(learned), path) == read_learned_as(type(learned), str(path)) == learned
    assert read_learned_as(type(learned), learned) is learned
    assert read_learned_as(CoopContext, f"coop={path}") == context_alone(learned)
    for other in {CoopContext, CocoopContext, MaplePrompts} - {type(learned)}:
        with pytest.raises(OtptError, match=rf"{kind}\.safetensors.*kind '{kind}'; expected '{other.kind}'"):
            read_learned_as(other, path)
        with pytest.raises(OtptError, match=f"kind '{kind}'; expected '{other.kind}'"):
            read_learned_as(other, learned)
        if other is not CoopContext:
            with pytest.raises(OtptError, match=f"kind 'coop'; expected '{other.kind}'"):
                read_learned_as(other, f"coop={path}")


def test_read_learned_as_refuses_other_objects(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="Prompt"):
        read_learned_as(CoopContext, Prompt())
    with pytest.raises(OtptError, match=r"missing\.pt"):
        read_learned_as(CoopContext, tmp_path / "missing.pt")


class _Harm:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.slow
def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    torch.save({"state_dict": {"ctx": normal(4, 8)}, "scheduler": _Harm(mark)}, tmp_path / "bad.pt")
    with pytest.raises(OtptError, match=r"bad\.pt"):
        read_learned(tmp_path / "bad.pt")
    assert not mark.exists()


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {each: tensor for each, tensor in state.items() if each != name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "value"),
    [
        ({"visual.proj": normal(2, 2)}, "visual.proj"),
        ({}, "ctx"),
        ({"ctx": normal(4)}, "4,"),
        ({"ctx": torch.full((4, 8), torch.nan)}, "ctx"),
        ({"ctx": torch.zeros(0, 8)}, "ctx"),
        (without(maple_state("vit", 3), "prompt_learner.proj.bias"), "'proj.bias' is missing"),
        (
            maple_state("vit", 3) | {"prompt_learner.compound_prompts_text.1": normal(3, 64)},
            "3, 64",
        ),
        ({"ctx": normal(4, 8), "meta_net.linear1.weight": normal(2, 32)}, "meta_net.linear1.bias' is missing"),
        (
            maple_state("vit", 2) | {"prompt_learner.compound_prompts_text.999999999": normal(2, 64)},
            "compound_prompts_text.1' is missing",
        ),
    ],
)
def test_bad_input(state: dict[str, Tensor], value: str, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=value):
        read_learned(dassl(tmp_path / "x.pth.tar-50", state))


@pytest.mark.slow
def test_notes_do_not_hide_the_tensors(tmp_path: Path) -> None:
    save_file({"ctx": normal(4, 8)}, tmp_path / "m.safetensors", {"state_dict": "a note of that name"})
    assert torch.equal(context_alone(read_learned(tmp_path / "m.safetensors")).vectors, normal(4, 8))


NAMES = ["cat", "red panda", "2012 BMW M3 coupe"]
EXACT = {"rtol": 0, "atol": 1e-10}


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def small(*shape: int, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def views(seed: int, count: int = 20) -> Tensor:
    return F.normalize(small(count, 32, seed=seed), dim=-1)


@pytest.mark.parametrize("tokens", [4, 16])
def test_each_class_has_its_own_context(tokens: int) -> None:
    """Class by class the features are those of the shared context with that class's vectors."""
    vectors = small(len(NAMES), tokens, 64)
    found = prompt_state(backbone(), NAMES, Prompt.learned(vectors)).text_features
    for c, own in enumerate(vectors):
        expected = prompt_state(backbone(), NAMES, Prompt.learned(own)).text_features[c]
        torch.testing.assert_close(found[c], expected, **EXACT)


def test_gradients_of_class_specific_contexts() -> None:
    """The prefix encoder against whole padded sentences through the model's own tower."""
    tokens = tokenize_prompts(backbone().text, NAMES, Prompt.learned(small(len(NAMES), 4, 64)))
    cotangents = small(2, len(NAMES), 32, seed=1)
    contexts = torch.stack([tokens.start, tokens.start + small(*tokens.start.shape, seed=2)])
    lines = [Linearisation(kind(backbone().text, tokens), contexts) for kind in (PrefixEncoder, PlainEncoder)]
    torch.testing.assert_close(lines[0].text_features, lines[1].text_features, **EXACT)
    fast, plain = (line.vjp(cotangents) for line in lines)
    assert fast.shape == (2, len(NAMES) * 4, 64)
    torch.testing.assert_close(fast, plain, **EXACT)


def test_class_specific_contexts_of_a_tower_that_is_not_causal() -> None:
    tower = siglip("float64")
    vectors = small(len(NAMES), 2, 64)
    found = prompt_state(tower, NAMES, Prompt.learned(vectors)).text_features
    expected = torch.stack(
        [prompt_state(tower, NAMES, Prompt.learned(own)).text_features[c] for c, own in enumerate(vectors)]
    )
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("name", ["coop+tpt", "coop+c-tpt", "coop+o-tpt"])
def test_class_specific_contexts_are_tuned(name: str) -> None:
    """One closed-form step against torch's AdamW on one graph from vectors to loss."""
    vectors = small(len(NAMES), 4, 64)
    text = prompt_state(backbone(), NAMES, Prompt.learned(vectors))
    config = get_method(name).tuning("fine-grained")
    found = tune(text, views(3)[None], [config])[config].logits[0]

    tokens = tokenize_prompts(backbone().text, NAMES, Prompt.learned(vectors))
    embeddings = backbone().text.embed(tokens.ids)
    leaf = torch.nn.Parameter(vectors.clone())
    optimiser = torch.optim.AdamW([leaf], lr=5e-3)

    def features() -> Tensor:
        rows = torch.cat([embeddings[:, :1], leaf, embeddings[:, 5:]], dim=1)
        return F.normalize(backbone().text.encode_embeddings(tokens.ids, rows), dim=-1)

    texts = features()
    logits = backbone().logit_scale * views(3) @ texts.T
    chosen = torch.distributions.Categorical(logits=logits).entropy().argsort()[:2]
    mean = logits[chosen].softmax(-1).mean(0)
    weights = dict(config.weights)
    loss = -(mean * mean.log()).sum() - weights.get("dispersion", 0) * (texts - texts.mean(0)).norm(dim=1).mean()
    gram = texts @ texts.T
    loss = loss + weights.get("orthogonality", 0) * (gram.norm(dim=1) - 1).abs().mean()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        expected = backbone().logit_scale * views(3)[0] @ features().T
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), **EXACT)


def net(width: int = 64, dim: int = 32, hidden: int = 2) -> CocoopContext:
    shapes = ((4, width), (hidden, dim), (hidden,), (width, hidden), (width,))
    return CocoopContext(*(small(*shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("steps", [1, 2])
def test_each_image_starts_from_its_own_context(steps: int) -> None:
    """Image by image the result is that of a shared context with that image's vectors."""
    context = net()
    images = torch.stack([views(1), views(2)])
    starts = context.starts(images[:, 0])
    assert (starts[0] - starts[1]).abs().max() > 1e-2
    text = prompt_state(backbone(), NAMES, context.prompt())
    configs = [get_method(n).override({"steps": steps}).tuning("fine-grained") for n in ("cocoop+tpt", "cocoop+o-tpt")]
    found = tune(text, images, configs, starts=starts)
    for i, start in enumerate(starts):
        alone = tune(prompt_state(backbone(), NAMES, Prompt.learned(start)), images[i : i + 1], configs)
        for config in configs:
            for field in ("logits", "contexts", "mean_cosine"):
                values = getattr(found[config], field)[i], getattr(alone[config], field)[0]
                torch.testing.assert_close(*values, **EXACT)


def test_bad_contexts() -> None:
    def sentence(prompt: Prompt) -> str:
        with pytest.raises(OtptError) as error:
            prompt_state(backbone(), NAMES, prompt)
        return str(error.value)

    assert "width 512" in sentence(Prompt.learned(small(4, 512)))
    assert "width 512" in sentence(Prompt.learned(small(3, 4, 512)))
    assert "5 other classes" in sentence(Prompt.learned(small(5, 4, 64)))
    other = Prompt.learned(small(3, 4, 64), class_names=("cat", "dog", "pug"))
    assert "its class 2 is 'dog', not 'red panda'" in sentence(other)
    prompt_state(backbone(), NAMES, Prompt.learned(small(3, 4, 64), class_names=tuple(NAMES)))
    with pytest.raises(OtptError, match=r"48.* 32"):
        net(dim=48).check_fits(32)
    with pytest.raises(OtptError, match="4,"):
        Prompt.learned(small(4))
