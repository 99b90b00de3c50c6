"""PromptAlign: reference values, the literal way over hooks and torch's AdamW to 1e-10, and its file of statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles.methods.maple import LiteralMaple, maple_state, tiny_model, tiny_prompted_backbone
from torch import Tensor, nn

from otpt.errors import OtptError
from otpt.methods import get_method
from otpt.methods.maple import MapleState, alignment, prompt_align, source_moments
from otpt.prompts.learned import MaplePrompts, fingerprint, read_learned, write_learned

NAMES = ["cat", "dog", "red panda"]
EXACT = {"rtol": 0, "atol": 1e-10}


def pixels(views: int = 64) -> Tensor:
    return torch.randn(views, 3, 32, 32, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def prompts(folder: Path, kind: str, *, tokens: int, width: int) -> MaplePrompts:
    torch.save({"state_dict": maple_state(kind, 3)}, folder / "maple.pt")
    found, generator = read_learned(folder / "maple.pt"), torch.Generator().manual_seed(2)
    assert isinstance(found, MaplePrompts)
    means = torch.randn(3, tokens + 2, width, generator=generator)
    return replace(found, means=means, variances=torch.rand(3, tokens + 2, width, generator=generator))


def test_reference() -> None:
    layers = [
        [[(1, 2), (0, 1)], [(2, 2), (1, 1)]],
        [[(0, 1), (1, 0)], [(1, 1), (1, 2)]],
        [[(3, 0), (0, 0)], [(0, 0), (1, 1)]],
    ]
    entering = torch.tensor(layers, dtype=torch.float64).transpose(0, 1)  # views, layers, tokens, numbers
    half, quarter = (torch.full((3, 2, 2), value, dtype=torch.float64) for value in (0.5, 0.25))
    terms = [float(alignment(entering[:, i : i + 1], half[:1], quarter[:1])) for i in range(3)]
    assert terms == pytest.approx([0.4375, 0.34375, 0.46875])
    assert 100 / 3 * float(alignment(entering[:, :2], half[:2], quarter[:2])) == pytest.approx(26.041667)
    assert 100 / 3 * float(alignment(entering, half, quarter)) == pytest.approx(41.666667)


def literal(oracle: LiteralMaple, blocks: nn.ModuleList, source: MaplePrompts, views: Tensor, lr: float) -> Tensor:
    """Logits of the clean view after a step; the blocks' inputs are noted by hooks."""
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for block in blocks]
    p = {name: tensor.clone().requires_grad_() for name, tensor in oracle.start.items()}
    loss, chosen = oracle.loss(views, p, None, {"entropy": 1.0})
    for layer in (0, 1):
        x = seen[layer][chosen]
        mean = x.mean(dim=0)
        variance = ((x - mean) ** 2).mean(dim=0)
        distance = 0.5 * nn.functional.l1_loss(mean, source.means[layer].double())
        loss = loss + 100 / 3 * (distance + 0.5 * nn.functional.l1_loss(variance, source.variances[layer].double()))
    for hook in hooks:
        hook.remove()
    optimiser = torch.optim.AdamW(p.values(), lr=lr)
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        return oracle.logits(views[:1], p)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tokens", "width"), [("vit", 17, 64), ("timm", 16, 48)])
@pytest.mark.parametrize("family", ["fine-grained", "shift"])
def test_step_is_the_literal_one(kind: str, tokens: int, width: int, family: str, tmp_path: Path) -> None:
    source = prompts(tmp_path, kind, tokens=tokens, width=width)
    state = MapleState(tiny_prompted_backbone(kind, blocks=4), NAMES, source)
    oracle = LiteralMaple(tiny_model(kind, blocks=4), NAMES, maple_state(kind, 3))
    rate = get_method("prompt-align").settings_for(family)["align_rate"]
    views = state.tower.embed(pixels())
    zero_shot = state.initial(views[None]).view_logits[0]
    found = prompt_align(views, zero_shot, state, align_rate=rate)
    visual = oracle.model.visual
    blocks = visual.trunk.blocks if kind == "timm" else visual.transformer.resblocks
    expected = literal(oracle, blocks, source, pixels(), rate)
    torch.testing.assert_close(found[0].softmax(-1), expected.softmax(-1), **EXACT)
    torch.testing.assert_close(found[1:], zero_shot[1:], rtol=0, atol=0)
    plain = oracle.tuned(pixels(), {"entropy": 1.0}, lr=rate)
    assert (expected - plain).abs().max() > 1e-3, "the alignment says something"


def test_statistics_are_part_of_the_file(tmp_path: Path) -> None:
    source = prompts(tmp_path, "vit", tokens=17, width=64)
    for name in ("own.safetensors", "own.pt"):
        (tmp_path / name).write_bytes(write_learned(tmp_path / name, source))
        again = read_learned(tmp_path / name)
        assert isinstance(again, MaplePrompts)
        assert again.means is not None
        assert torch.equal(again.means, source.means)
        assert torch.equal(again.variances, source.variances)
        assert fingerprint(again) == fingerprint(source) != fingerprint(replace(source, means=source.means + 1))


def test_missing_or_foreign_statistics(tmp_path: Path) -> None:
    backbone, source = tiny_prompted_backbone("vit", blocks=4), prompts(tmp_path, "vit", tokens=17, width=64)
    for wrong in (replace(source, means=None, variances=None), prompts(tmp_path, "vit", tokens=9, width=64)):
        with pytest.raises(OtptError, match="token statistics"):
            source_moments(MapleState(backbone, NAMES, wrong, tunes=False))
    with pytest.raises(OtptError, match="init"):
        get_method("coop+prompt-align")
