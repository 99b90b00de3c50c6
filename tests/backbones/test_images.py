"""The tuned image tower: the same features as the plain one, and the same bits in any batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from open_clip import CLIP
from open_clip.model import CustomTextCLIP
from oracles.models.tiny import randomise, tiny_backbone, tiny_clip, tiny_config, tiny_preprocessing
from torch import Tensor, nn

from otpt.backbones.fast import Convolution, Linear, can_pack, tune, tune_convolutions
from otpt.backbones.image_tower import ImageTower


def images(size: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    colours = torch.randn(count, 3, 1, 1, generator=generator)
    return (0.5 * torch.randn(count, 3, size, size, generator=generator) + colours).to(dtype)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 5e-6), ("float64", 1e-12), ("bf16", 5e-2)])
def test_features_are_those_of_the_plain_model(kind: str, precision: str, tolerance: float) -> None:
    backbone = tiny_backbone(kind, precision)
    model = tiny_clip(kind, dtype=backbone.dtype)
    pixels = images(backbone.preprocessing.size, 11, backbone.dtype)
    features = backbone.encode_pixels(pixels)
    assert features.shape == (11, backbone.embed_dim)
    assert features.dtype == backbone.dtype
    expected = F.normalize(model.encode_image(pixels), dim=-1)
    torch.testing.assert_close(features, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(11, dtype=backbone.dtype))
    cosines = expected @ expected.T
    assert cosines.min() < 0.7  # images are told apart, so agreement means something


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_the_tower_is_in_fact_tuned(kind: str) -> None:
    visual = tiny_clip(kind).visual
    assert tune(visual, tiny_preprocessing(kind).size, 8, pack=True) is not visual
    names = [type(module).__name__ for module in tiny_backbone(kind)._image._visual.modules()]
    assert "BatchNorm2d" not in names
    assert "MultiheadAttention" not in names


@pytest.mark.equality
@pytest.mark.parametrize(
    ("kind", "precision"), [("vit", "float32"), ("vit", "float64"), ("vit", "bf16"), ("resnet", "float32")]
)
def test_a_view_has_the_same_bits_in_every_batch(kind: str, precision: str) -> None:
    backbone = tiny_backbone(kind, precision)
    pixels = images(backbone.preprocessing.size, 19)
    encode = partial(backbone.encode_pixels, chunk=backbone.chunk)
    together = encode(pixels)
    for count in (1, 2, 3, 8, 9, 17):
        assert torch.equal(encode(pixels[:count]), together[:count]), count
        free = backbone.encode_pixels(pixels[:count])  # nothing is filled up
        torch.testing.assert_close(
            free, together[:count], rtol=0, atol={"bf16": 0.02, "float64": 1e-13}.get(precision, 2e-6)
        )
    full = pixels[: backbone.chunk].repeat(2, 1, 1, 1)
    assert torch.equal(backbone.encode_pixels(full), encode(full))
    order = torch.randperm(19, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encode(pixels[order]), together[order])
    crowd = torch.cat([3 * pixels[5:12], pixels[4:5]])  # other neighbours, another position
    assert torch.equal(encode(crowd)[7], together[4])
    assert torch.equal(encode(pixels), together)


def test_no_views_and_views_of_another_size() -> None:
    backbone = tiny_backbone()
    assert backbone.encode_pixels(torch.empty(0, 3, 32, 32)).shape == (0, 32)
    with pytest.raises(ValueError, match=r"expected pixels of shape \(N, 3, 32, 32\), but got \(2, 3, 16, 16\)"):
        backbone.encode_pixels(torch.zeros(2, 3, 16, 16))


@pytest.mark.parametrize(
    "vision",
    [
        {"pool_type": "avg"},
        {"final_ln_after_pool": True},
        {"attentional_pool": True, "attn_pooler_heads": 2},
        {"ls_init_value": 0.2},
        {"block_type": "custom", "qk_norm": True},
        {"no_ln_pre": True},
        {"act_kwargs": {"approximate": "tanh"}},
    ],
)
def test_other_vision_transformers_are_left_right(vision: dict[str, Any]) -> None:
    config = tiny_config() | {"quick_gelu": "act_kwargs" not in vision}
    config["vision_cfg"] |= vision
    model = randomise(CLIP(**config))
    pixels = images(32, 3)
    found = ImageTower(model.visual, 32)(pixels)
    torch.testing.assert_close(found, F.normalize(model.visual(pixels), dim=-1), rtol=0, atol=5e-6)


def test_timm_convolutional_tower_is_folded() -> None:
    config = tiny_config()
    config["vision_cfg"] = {"timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
    visual = randomise(CustomTextCLIP(**config)).visual
    pixels = images(64, 3)
    folded = tune_convolutions(visual, pixels[:1], 1, pack=False)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in visual.modules())
    assert norms > 5
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded(pixels), visual(pixels), rtol=1e-4, atol=1e-4)
    tower = ImageTower(visual, 64)
    torch.testing.assert_close(tower(pixels), F.normalize(visual(pixels), dim=-1), rtol=0, atol=5e-6)


@pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="a PyTorch without oneDNN")
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "efficientnet_b0"])
def test_activations_join_their_convolutions(name: str) -> None:
    """ReLU6 after TensorFlow's one-sided padding; squeeze-and-excite, SiLU; convolutions before a transformer."""
    config = tiny_config()
    config["vision_cfg"] = {"timm_model_name": name, "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
    visual = CustomTextCLIP(**config).visual.eval()
    pixels = images(64, 9)
    tuned = tune(visual, 64, 8, pack=True)
    fused = sum(isinstance(module, Convolution) for module in tuned.modules())
    assert fused == sum(isinstance(module, nn.Conv2d) for module in visual.modules())
    clips = sum(isinstance(module, nn.ReLU6) for module in visual.modules())
    assert (clips > 20) == (name != "efficientnet_b0")
    assert not any(isinstance(module, nn.ReLU6) for module in tuned.modules())
    expected = F.normalize(visual(pixels), dim=-1)
    torch.testing.assert_close(ImageTower(visual, 64)(pixels), expected, rtol=0, atol=5e-6)
    assert (expected @ expected.T).min() < 0.9999


def test_an_activation_of_a_sum_stays() -> None:
    class Shared(nn.Module):
        """What the activation receives is also used without it: joining them would change the result."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(5))
            self.norm, self.clip = nn.BatchNorm2d(3), nn.ReLU6()

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.parts[0](x))
            for part in list(self.parts)[1:]:
                x = part(x)
                x = x + (self.clip(x) if part is self.parts[1] else 0.0)
            return x.mean((2, 3))

    visual = randomise(Shared()).eval()
    assert tune(visual, 8, 4, pack=True) is visual
    found = ImageTower(visual, 8)(images(8, 3))
    torch.testing.assert_close(found, F.normalize(visual(images(8, 3)), dim=-1), rtol=0, atol=5e-6)


def test_a_norm_that_does_not_follow_a_convolution_stays() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.norm(self.conv(x) + x)
            return result

    tower = randomise(Summed())
    folded = tune_convolutions(tower, images(8, 1), 1, pack=False)
    assert any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    pixels = images(8, 2)
    torch.testing.assert_close(folded(pixels), tower(pixels))


def test_packed_linear_is_linear_for_any_number_of_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(24, 40, generator=generator), torch.randn(24, generator=generator)
    linear = Linear(weight, bias, rows=10, pack=True)
    assert (linear._packed is not None) == can_pack(weight)
    for shape in ((10, 40), (2, 5, 40), (3, 40)):
        x = torch.randn(*shape, generator=generator)
        torch.testing.assert_close(linear(x), x @ weight.T + bias, rtol=1e-5, atol=1e-5)
