"""``pocket`` in plain torch: the same bits as timm and open_clip give with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from open_clip.model import CLIP
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from otpt.backbones import QuickGeluWarning, load_backbone
from otpt.backbones.pocket import PocketClip, load_pocket, load_pocket_state
from otpt.backbones.prompted_tower import PromptedTower

TEXTS = ["x", "a photo of a cat.", "grinning face with smiling eyes, 2012", "Ärger! 日本"]


class TimmTokens(nn.Module):
    """timm's EfficientNet-Lite0 in the place of a patch embedding, as ``pocket`` was trained."""

    def __init__(self, embed_dim: int, **_: Any) -> None:
        super().__init__()
        net = timm.create_model("tf_efficientnet_lite0", num_classes=0)
        self.stem, self.stem_norm, self.stages = net.conv_stem, net.bn1, net.blocks
        for part in self.stages[5].modules():
            if isinstance(part, nn.Conv2d):
                part.stride = (1, 1)
        self.proj = nn.Linear(320, embed_dim)
        self.num_patches = 16

    def forward(self, pixels: Tensor) -> Tensor:
        tokens: Tensor = self.proj(self.stages(self.stem_norm(self.stem(pixels))).flatten(2).transpose(1, 2))
        return tokens


@pytest.fixture(scope="module")
def plain() -> PocketClip:
    model: PocketClip = load_pocket().model
    return model.eval().requires_grad_(False)


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(5))


def test_image_features_and_gradients_have_the_bits_of_timm(plain: PocketClip) -> None:
    trunk = VisionTransformer(
        img_size=64,
        embed_layer=TimmTokens,
        embed_dim=192,
        depth=2,
        num_heads=3,
        class_token=False,
        global_pool="avg",
        num_classes=0,
    ).eval()
    trunk.load_state_dict(plain.visual.trunk.state_dict(), strict=True)
    found, expected = pixels(3).requires_grad_(), pixels(3).requires_grad_()
    ours, theirs = plain.visual.trunk(found), trunk.requires_grad_(False)(expected)
    assert torch.equal(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


def test_text_features_have_the_bits_of_open_clip(plain: PocketClip) -> None:
    config, state = load_pocket_state()
    vision = {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1}
    theirs = CLIP(**config["model_cfg"] | {"vision_cfg": vision}).eval()
    missing, _ = theirs.load_state_dict({n: t for n, t in state.items() if not n.startswith("visual")}, strict=False)
    assert all(name.startswith("visual") for name in missing)
    ids = load_pocket().tokenizer(TEXTS)
    with torch.no_grad():
        assert torch.equal(plain.encode_text(ids), theirs.encode_text(ids))


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
