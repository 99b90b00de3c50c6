"""``pocket`` in plain torch: the same bits as open_clip and timm give with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import open_clip
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from otpt.backbones import Backbone, QuickGeluWarning, load_backbone
from otpt.backbones.fingerprint import fingerprint
from otpt.backbones.pocket import load_pocket_state, write_open_clip_folder
from otpt.backbones.pocket import registration as _registers_pocket_hybrid  # noqa: F401
from otpt.backbones.pocket.model import PocketClip, build_pocket
from otpt.backbones.towers.prompted_tower import PromptedTower

pytestmark = pytest.mark.slow

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


def timm_trunk() -> VisionTransformer:
    return VisionTransformer(
        img_size=64,
        embed_layer=TimmTokens,
        embed_dim=192,
        depth=2,
        num_heads=3,
        class_token=False,
        global_pool="avg",
        num_classes=0,
    )


@pytest.fixture(scope="module")
def plain() -> PocketClip:
    config, state = load_pocket_state()
    return build_pocket(config["model_cfg"], state)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> open_clip.CLIP:
    """The same weights in open_clip's ``CLIP`` with timm's trunk."""
    folder = tmp_path_factory.mktemp("pocket")
    write_open_clip_folder(folder)
    model = open_clip.create_model(f"local-dir:{folder}").eval().requires_grad_(False)
    trunk = timm_trunk().eval().requires_grad_(False)
    trunk.load_state_dict(model.visual.trunk.state_dict(), strict=True)
    model.visual.trunk = trunk
    return model


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(5))


@pytest.mark.equality
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_image_features_have_the_bits_of_timm(
    plain: PocketClip, theirs: open_clip.CLIP, layout: torch.memory_format
) -> None:
    for count in (1, 5):
        views = pixels(count).contiguous(memory_format=layout)
        assert torch.equal(plain.encode_image(views), theirs.encode_image(views))
    assert torch.equal(plain.encode_image(views, normalize=True), theirs.encode_image(views, normalize=True))


@pytest.mark.equality
def test_text_features_have_the_bits_of_open_clip(plain: PocketClip, theirs: open_clip.CLIP) -> None:
    ids = open_clip.tokenize(TEXTS)
    assert torch.equal(plain.encode_text(ids), theirs.encode_text(ids))
    assert torch.equal(plain.encode_text(ids, normalize=True), theirs.encode_text(ids, normalize=True))


@pytest.mark.equality
def test_gradients_have_the_bits_of_timm(plain: PocketClip, theirs: open_clip.CLIP) -> None:
    found, expected = pixels(3).requires_grad_(), pixels(3).requires_grad_()
    plain.encode_image(found).square().sum().backward()
    theirs.encode_image(expected).square().sum().backward()
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


@pytest.mark.equality
def test_one_fingerprint_and_the_same_features_whoever_builds_it(theirs: open_clip.CLIP, tmp_path: Path) -> None:
    own = load_backbone("pocket", device="cpu")
    assert own.fingerprint == fingerprint(theirs)
    write_open_clip_folder(tmp_path)
    other = load_backbone(str(tmp_path), device="cpu")
    assert other.fingerprint == own.fingerprint
    assert other.family == own.family == "vit"
    assert other.preprocessing == own.preprocessing
    assert torch.equal(other.encode_pixels(pixels(9)), own.encode_pixels(pixels(9)))
    assert torch.equal(text_features(other), text_features(own))


def text_features(backbone: Backbone) -> Tensor:
    ids = backbone.text.tokenize(TEXTS)
    return backbone.text.encode_embeddings(ids, backbone.text.embed(ids))


def test_prompts_enter_the_blocks() -> None:
    tower = PromptedTower(load_backbone("pocket", device="cpu"))
    assert (tower.depth, tower.width) == (2, 192)
    features, gradient = tower.linearise(tower.embed(pixels(2)), torch.zeros(2, 3, 192))
    assert bool((gradient(torch.ones_like(features)) != 0).any(dim=-1).all())


def test_quick_gelu_as_asked() -> None:
    with pytest.warns(QuickGeluWarning, match="pocket was trained with GELU, but runs with QuickGELU as asked"):
        backbone = load_backbone("pocket", device="cpu", quick_gelu=True)
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"
    assert backbone.fingerprint != load_backbone("pocket", device="cpu").fingerprint


def test_timm_builds_the_trunk_with_sensible_random_weights() -> None:
    trunk, reference = timm.create_model("pocket_hybrid"), timm_trunk()
    assert trunk.state_dict().keys() == reference.state_dict().keys()
    for name, value in reference.state_dict().items():
        found = trunk.state_dict()[name].float()
        assert found.shape == value.shape
        torch.testing.assert_close(found.mean(), value.float().mean(), rtol=0, atol=0.1)
        if value.numel() > 500:
            torch.testing.assert_close(found.std(), value.std(), rtol=0.2, atol=0)
    with pytest.raises(ValueError, match="weights are those of otpt"):
        timm.create_model("pocket_hybrid", pretrained=True)
    with pytest.raises(ValueError, match="expected no classes and pooling 'avg', but got 10 and 'avg'"):
        trunk.reset_classifier(10)
