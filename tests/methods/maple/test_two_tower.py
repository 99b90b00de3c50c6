"""MaPLe's two towers against the literal way: all 77 positions, all views within the graph."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from oracles.methods.maple import LiteralMaple, maple_state, tiny_model, tiny_prompted_backbone
from oracles.models.tiny import tiny_backbone
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.methods import get_method, tuner
from otpt.methods.maple import MapleState
from otpt.methods.method import TuningConfig
from otpt.methods.state import Scores
from otpt.methods.tuner import tune
from otpt.prompts.learned import MaplePrompts, read_learned

pytestmark = pytest.mark.slow

NAMES = ["cat", "dog", "red panda", "2012 BMW M3 coupe"]
TUNED = ("maple+tpt", "maple+c-tpt", "maple+o-tpt")
EXACT = {"rtol": 0, "atol": 1e-10}


@cache
def backbone(kind: str, blocks: int = 2) -> Backbone:
    return tiny_prompted_backbone(kind, blocks=blocks)


@cache
def pixels(views: int = 64) -> Tensor:
    return torch.randn(views, 3, 32, 32, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def at_init(side: MapleState, pixels: Tensor) -> Scores:
    return side.initial(side.tower.embed(pixels)[None])


def tuned_by(side: MapleState, pixels: Tensor, configs: list[TuningConfig]) -> dict[TuningConfig, Scores]:
    return tune(side, side.tower.embed(pixels)[None], configs, all_views=True)


def prompts(folder: Path, kind: str, depth: int) -> MaplePrompts:
    torch.save({"state_dict": maple_state(kind, depth), "epoch": 5}, folder / "model.pth.tar-5")
    found = read_learned(folder / "model.pth.tar-5")
    assert isinstance(found, MaplePrompts)
    assert found.depth == depth
    return found


@pytest.mark.parametrize(("kind", "depth", "blocks"), [("vit", 2, 2), ("vit", 3, 4), ("timm", 3, 4), ("hybrid", 3, 4)])
def test_forward_is_the_literal_one(kind: str, depth: int, blocks: int, tmp_path: Path) -> None:
    """Also with the published depths of 3 and 9, and blocks after the last prompts."""
    side = MapleState(backbone(kind, blocks), NAMES, prompts(tmp_path, kind, depth))
    oracle = LiteralMaple(tiny_model(kind, blocks=blocks), NAMES, maple_state(kind, depth))
    found = at_init(side, pixels()).logits[0]
    expected = oracle.logits(pixels()[:1], oracle.start)[0]
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(side.text_features, oracle.text_features(oracle.start), **EXACT)
    plain = {name: torch.zeros_like(tensor) for name, tensor in oracle.start.items()}
    assert (oracle.logits(pixels()[:1], plain)[0] - expected).abs().max() > 1e-2, "the prompts say something"


@pytest.mark.parametrize("kind", ["vit", "timm", "hybrid"])
def test_tuning_is_the_literal_one(kind: str, tmp_path: Path) -> None:
    """Three methods in one pass, against one graph over all views each."""
    side = MapleState(backbone(kind), NAMES, prompts(tmp_path, kind, 2))
    oracle = LiteralMaple(tiny_model(kind), NAMES, maple_state(kind, 2))
    configs = [get_method(name).tuning("fine-grained") for name in TUNED]
    initial = at_init(side, pixels())
    tuned = tuned_by(side, pixels(), configs)
    for config in configs:
        expected = oracle.tuned(pixels(), dict(config.weights), lr=5e-4)
        torch.testing.assert_close(tuned[config].logits[0].softmax(-1), expected.softmax(-1), **EXACT)
        assert (expected - initial.logits[0]).abs().max() > 1e-2, "tuning does something"
    spread = torch.stack([tuned[config].logits[0] for config in configs])
    assert (spread[0] - spread[1]).abs().max() > 1e-6
    assert (spread[1] - spread[2]).abs().max() > 1e-6


def test_several_steps_and_the_learning_rate_of_shifts(tmp_path: Path) -> None:
    side = MapleState(backbone("vit"), NAMES, prompts(tmp_path, "vit", 2))
    oracle = LiteralMaple(tiny_model("vit"), NAMES, maple_state("vit", 2))
    config = get_method("maple+o-tpt").override({"steps": 2}).tuning("shift")
    found = tuned_by(side, pixels(), [config])[config].logits[0]
    expected = oracle.tuned(pixels(), dict(config.weights), lr=4e-2, steps=2)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "method"), [*(("vit", method) for method in TUNED), ("timm", "maple+o-tpt"), ("hybrid", "maple+o-tpt")]
)
def test_the_gradient_of_the_selected_views_is_that_of_all(kind: str, method: str, tmp_path: Path) -> None:
    """Six of 64 views go through the graph here, all of them there."""
    side = MapleState(backbone(kind, 4), NAMES, prompts(tmp_path, kind, 3))
    oracle = LiteralMaple(tiny_model(kind, blocks=4), NAMES, maple_state(kind, 3))
    tokens, config = side.tower.embed(pixels())[None], get_method(method).tuning("fine-grained")
    many = tuner._gradient  # the general way; the closed form of one step is compared by its logits
    seen: list[Tensor] = []

    def noting(*args: object, **more: object) -> tuple[Tensor, object]:
        found = many(*args, **more)
        seen.append(found[0])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "_gradient", noting)
        tuner.tune_many_steps(side, tokens, config)
    found = MaplePrompts(*side.split(seen[0])).state()
    published = {"maple+tpt": {}, "maple+c-tpt": {"dispersion": 50.0}, "maple+o-tpt": {"orthogonality": 18.0}}
    expected = oracle.gradient(pixels(), {"entropy": 1.0, **published[method]})
    assert set(found) == {f"prompt_learner.{name}" for name in expected}
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[f"prompt_learner.{name}"], gradient, rtol=1e-9, atol=1e-11)


def test_all_views_are_those_of_the_literal_way(tmp_path: Path) -> None:
    """Logits and features of all views, before and after tuning, for aggregations that look at them."""
    side = MapleState(backbone("vit"), NAMES, prompts(tmp_path, "vit", 2))
    oracle = LiteralMaple(tiny_model("vit"), NAMES, maple_state("vit", 2))
    config = get_method("maple+o-tpt").tuning("fine-grained")
    initial = at_init(side, pixels())
    tuned = tuned_by(side, pixels(), [config])
    torch.testing.assert_close(initial.view_logits[0], oracle.logits(pixels(), oracle.start), **EXACT)
    assert initial.features.shape == (1, 64, side.text_features.shape[1])
    torch.testing.assert_close(tuned[config].view_logits[0, :1], tuned[config].logits, **EXACT)
    assert (tuned[config].view_logits[0] - initial.view_logits[0]).abs().amax(dim=1).min() > 1e-3, (
        "all views are adapted"
    )


@pytest.mark.equality
def test_an_image_does_not_depend_on_those_before_it(tmp_path: Path) -> None:
    configs = [get_method(name).tuning("fine-grained") for name in TUNED]
    side, fresh = (MapleState(backbone("timm"), NAMES, prompts(tmp_path, "timm", 2)) for _ in range(2))
    tuned_by(side, pixels().flip(0), configs)
    initial = at_init(side, pixels())
    tuned = tuned_by(side, pixels(), configs)
    alone = at_init(fresh, pixels())
    tuned_alone = tuned_by(fresh, pixels(), configs)
    assert torch.equal(initial.logits, alone.logits)
    assert torch.equal(initial.logits, at_init(fresh, pixels()[:1]).logits), "nor on the other views"
    for config in configs:
        assert torch.equal(tuned[config].logits, tuned_alone[config].logits)
        assert torch.equal(tuned[config].mean_cosine, tuned_alone[config].mean_cosine)


@pytest.mark.parametrize(
    ("kind", "state", "sentence"),
    [
        ("vit", maple_state("vit", 3), "have 3 layers; this image tower has only 2"),
        ("timm", maple_state("vit", 2), "width 64, but the image tower has width 48"),
        ("vit", maple_state("vit", 2, text_width=32), "width 32, but the text tower has width 64"),
    ],
)
def test_prompts_that_do_not_fit(kind: str, state: dict[str, Tensor], sentence: str, tmp_path: Path) -> None:
    torch.save({"state_dict": state}, tmp_path / "maple.pt")
    learned = read_learned(tmp_path / "maple.pt")
    assert isinstance(learned, MaplePrompts)
    with pytest.raises(OtptError, match=sentence):
        MapleState(backbone(kind), NAMES, learned)


def test_a_tower_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="is a ModifiedResNet"):
        MapleState(tiny_backbone("resnet"), NAMES, prompts(tmp_path, "vit", 2))
