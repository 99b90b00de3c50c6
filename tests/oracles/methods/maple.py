"""MaPLe the literal way: 77 positions, all views within one graph, torch's AdamW on every tensor of the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from open_clip import CLIP
from oracles.methods.householder import literal_householder
from oracles.models.tiny import MEAN, STD, randomise, tiny_config, tokenizer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from otpt.backbones import Backbone, ClipBackbone, Preprocessing

TOKENS = 2


class ConvolutionalTokens(nn.Module):
    """(B, 3, 32, 32) → (B, 16, W) by convolutions with batch-norms, in the place of a patch embedding."""

    num_patches, grid_size = 16, (4, 4)

    def __init__(self, embed_dim: int, **_: Any) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, stride in enumerate((2, 2, 2, 1, 1)):
            convolution = nn.Conv2d(3 if i == 0 else embed_dim, embed_dim, 3, stride, 1, bias=False)
            layers += [convolution, nn.BatchNorm2d(embed_dim), nn.ReLU()]
        self.net = nn.Sequential(*layers)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net(pixels).flatten(2).transpose(1, 2)


class TimmVisual(nn.Module):
    """A timm vision transformer without class token under a linear head, as open_clip wraps it."""

    def __init__(self, blocks: int, dim: int = 32, **options: Any) -> None:
        super().__init__()
        self.trunk = VisionTransformer(
            img_size=32, patch_size=8, embed_dim=48, depth=blocks, num_heads=2, class_token=False, global_pool="avg",
            num_classes=0, **options,
        )  # fmt: skip
        self.head = nn.Linear(48, dim)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.trunk(pixels))


def tiny_model(kind: str, dtype: torch.dtype = torch.float64, *, blocks: int = 2) -> Any:
    """A small random CLIP whose image tower is open_clip's own ("vit"), timm's ("timm"), or timm's on convolutions
    ("hybrid"); so many blocks in the image tower, one more in the text tower.
    """
    config = tiny_config("vit")
    config["vision_cfg"]["layers"], config["text_cfg"]["layers"] = blocks, blocks + 1
    model = randomise(CLIP(**config), seed=0)
    if kind != "vit":
        options = {"embed_layer": ConvolutionalTokens} if kind == "hybrid" else {}
        model.visual = randomise(TimmVisual(blocks, **options), seed=3)
    return model.to(dtype)


def tiny_prompted_backbone(kind: str, precision: str = "float64", *, blocks: int = 2) -> Backbone:
    """The ``Backbone`` of ``tiny_model(kind)``."""
    preprocessing = Preprocessing(size=32, mean=MEAN, std=STD, interpolation="bicubic", resize_mode="shortest")
    model = tiny_model(kind, torch.float32, blocks=blocks)
    cpu = torch.device("cpu")
    return ClipBackbone(
        model, tokenizer(), preprocessing, name=kind, architecture=kind, device=cpu, precision=precision
    )


def maple_state(kind: str, depth: int, *, seed: int = 0, text_width: int = 64) -> dict[str, Tensor]:
    """Random tensors with the names, shapes and types of MaPLe's prompt learner."""
    generator = torch.Generator().manual_seed(seed)
    width = {"vit": 64, "timm": 48, "hybrid": 48, "ViT-B-16": 768}[kind]

    def normal(*shape: int, scale: float = 0.5) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    state = {
        "ctx": normal(TOKENS, text_width).half(),
        "proj.weight": normal(width, text_width, scale=0.2).half(),
        "proj.bias": normal(width).half(),
    }
    for i in range(depth - 1):
        state[f"compound_prompts_text.{i}"] = normal(TOKENS, text_width)
        state[f"compound_prompt_projections.{i}.weight"] = normal(width, text_width, scale=0.2)
        state[f"compound_prompt_projections.{i}.bias"] = normal(width)
    return {f"prompt_learner.{name}": tensor for name, tensor in state.items()}


class LiteralMaple:
    """MaPLe's forward pass and its tuning, from the checkpoint's own tensors."""

    def __init__(self, model: Any, names: Sequence[str], state: dict[str, Tensor]) -> None:
        self.model = model
        self.ids = tokenizer()([f"a photo of a {name}." for name in names])
        dtype = model.token_embedding.weight.dtype
        self.start = {k.removeprefix("prompt_learner."): v.to(dtype) for k, v in state.items()}
        self.depth = 1 + sum(name.startswith("compound_prompts_text") for name in self.start)

    def prompts(self, p: dict[str, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        """(text, vision) prompts of a layer."""
        if layer == 0:
            return p["ctx"], p["ctx"] @ p["proj.weight"].T + p["proj.bias"]
        text, linear = p[f"compound_prompts_text.{layer - 1}"], f"compound_prompt_projections.{layer - 1}"
        return text, text @ p[f"{linear}.weight"].T + p[f"{linear}.bias"]

    def text_features(self, p: dict[str, Tensor]) -> Tensor:
        model, count = self.model, len(self.ids)
        x = model.token_embedding(self.ids)
        x = torch.cat([x[:, :1], p["ctx"].expand(count, -1, -1), x[:, 1 + TOKENS :]], dim=1)
        x = x + model.positional_embedding
        for layer, block in enumerate(model.transformer.resblocks):
            if 1 <= layer < self.depth:
                deep = self.prompts(p, layer)[0].expand(count, -1, -1)
                x = torch.cat([x[:, :1], deep, x[:, 1 + TOKENS :]], dim=1)
            x = block(x, attn_mask=model.attn_mask)
        x = model.ln_final(x)[torch.arange(count), self.ids.argmax(-1)] @ model.text_projection
        return x / x.norm(dim=-1, keepdim=True)

    def image_features(self, pixels: Tensor, p: dict[str, Tensor]) -> Tensor:
        visual, count = self.model.visual, len(pixels)
        native = not hasattr(visual, "trunk")
        if native:
            x = visual.conv1(pixels).flatten(2).transpose(1, 2)
            x = torch.cat([visual.class_embedding.expand(count, 1, -1), x], dim=1) + visual.positional_embedding
            x = visual.ln_pre(torch.cat([x, self.prompts(p, 0)[1].expand(count, -1, -1)], dim=1))
            blocks = visual.transformer.resblocks
        else:
            x = visual.trunk.patch_embed(pixels) + visual.trunk.pos_embed
            x = torch.cat([x, self.prompts(p, 0)[1].expand(count, -1, -1)], dim=1)
            blocks = visual.trunk.blocks
        for layer, block in enumerate(blocks):
            if 1 <= layer < self.depth:
                x = torch.cat([x[:, :-TOKENS], self.prompts(p, layer)[1].expand(count, -1, -1)], dim=1)
            x = block(x)
        if native:
            x = visual.ln_post(x[:, 0]) @ visual.proj
        else:
            x = visual.head(visual.trunk.fc_norm(x[:, :-TOKENS].mean(dim=1)))
        return x / x.norm(dim=-1, keepdim=True)

    def logits(self, pixels: Tensor, p: dict[str, Tensor]) -> Tensor:
        return self.model.logit_scale.exp() * self.image_features(pixels, p) @ self.text_features(p).T

    def loss(self, pixels: Tensor, p: dict[str, Tensor], chosen: Tensor | None, weights: dict[str, float]) -> Any:
        """The loss with all views within the graph, and which views were chosen."""
        texts = self.text_features(p)
        logits = self.model.logit_scale.exp() * self.image_features(pixels, p) @ texts.T
        if chosen is None:
            entropies = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
            chosen = torch.argsort(entropies)[: int(len(pixels) * 0.1)]
        mean = logits[chosen].softmax(1).mean(0)
        loss = -weights["entropy"] * (mean * mean.log()).sum()
        loss = loss - weights.get("dispersion", 0.0) * (texts - texts.mean(0)).norm(dim=1).mean()
        return loss + weights.get("orthogonality", 0.0) * literal_householder(texts), chosen

    def gradient(self, pixels: Tensor, weights: dict[str, float]) -> dict[str, Tensor]:
        p = {name: tensor.clone().requires_grad_() for name, tensor in self.start.items()}
        self.loss(pixels, p, None, weights)[0].backward()
        return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in p.items()}

    def tuned(self, pixels: Tensor, weights: dict[str, float], *, lr: float, steps: int = 1) -> Tensor:
        """Logits of the clean view after AdamW steps on every tensor."""
        p = {name: tensor.clone().requires_grad_() for name, tensor in copy.deepcopy(self.start).items()}
        optimiser = torch.optim.AdamW(p.values(), lr=lr)
        chosen = None
        for _ in range(steps):
            loss, chosen = self.loss(pixels, p, chosen, weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            return self.logits(pixels[:1], p)[0]
