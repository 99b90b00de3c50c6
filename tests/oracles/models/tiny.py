"""Small random CLIPs for tests: built in milliseconds, no download, features that differ between classes
and images.

A freshly initialised CLIP gives nearly the same feature for every text, which would hide mistakes; so the
weights are drawn larger here, biases and batch-norm statistics are not trivial, and the logit scale is
CLIP's own 100.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from open_clip import CLIP, SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor, nn

from otpt.backbones import Backbone, ClipBackbone, Preprocessing

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def tiny_config(kind: str = "vit", *, embed_dim: int = 32, head_width: int = 32) -> dict[str, Any]:
    """open_clip's ``model_cfg`` of a small CLIP; ``head_width=64`` gives the heads OpenAI's files imply."""
    if kind == "vit":
        vision = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2, "head_width": head_width}
    elif kind == "resnet":
        vision = {"image_size": 64, "width": 8, "layers": [1, 1, 1, 1], "head_width": 64}
    else:
        raise ValueError(f"kind must be 'vit' or 'resnet', got {kind!r}")
    heads = 64 // min(head_width, 16) if head_width != 64 else 1
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": heads, "layers": 3}
    return {"embed_dim": embed_dim, "vision_cfg": vision, "text_cfg": text, "quick_gelu": True}


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Redraw every weight of ``model`` from ``seed`` so that features spread (see the module's docstring)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, std: float, mean: float = 0.0) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            if not tensor.is_floating_point():
                continue
            if leaf in {"logit_scale", "logit_bias"}:
                tensor.fill_(math.log(100.0) if leaf == "logit_scale" else 0.0)
            elif leaf == "running_var":
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64))
            elif name.endswith("token_embedding.weight"):
                normal(tensor, 0.5)
            elif "positional_embedding" in leaf or leaf in {"class_embedding", "cls_emb"}:
                normal(tensor, 0.2)
            elif tensor.ndim >= 2:
                fan_in = tensor[0].numel() if leaf not in {"proj", "text_projection"} else tensor.shape[0]
                normal(tensor, 1.2 * fan_in**-0.5)
            elif leaf == "weight":  # norms
                normal(tensor, 0.15, mean=1.0)
            else:  # biases, running means
                normal(tensor, 0.1)
    return model.eval().requires_grad_(False)


@cache
def tokenizer() -> SimpleTokenizer:
    """open_clip's, whose vocabulary is read once."""
    return SimpleTokenizer()


def tiny_clip(kind: str = "vit", seed: int = 0, dtype: torch.dtype = torch.float32, *, head_width: int = 32) -> CLIP:
    """A small random open_clip ``CLIP`` of the given kind of image tower ("vit" or "resnet")."""
    return deepcopy(_drawn(kind, seed, head_width)).to(dtype)


@lru_cache(maxsize=8)
def _drawn(kind: str, seed: int, head_width: int) -> CLIP:
    """In float32; most of its time goes into the three million numbers of the token embedding."""
    config = tiny_config(kind, head_width=head_width)
    model = randomise(CLIP(**config), seed)
    if kind == "resnet":
        # ReLUs give every image the same large mean feature; take most of it out, rounded so that it is
        # always the same
        size = config["vision_cfg"]["image_size"]
        noise = torch.randn(16, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        mean = model.double().encode_image(noise).mean(dim=0).mul(80).round().div(100)
        model.visual.attnpool.c_proj.bias.sub_(mean)
    return model.float()


def tiny_preprocessing(kind: str = "vit") -> Preprocessing:
    size = tiny_config(kind)["vision_cfg"]["image_size"]
    return Preprocessing(size=size, mean=MEAN, std=STD, interpolation="bicubic", resize_mode="shortest")


def tiny_backbone(kind: str = "vit", precision: str = "float32", seed: int = 0) -> Backbone:
    """The ``Backbone`` of ``tiny_clip(kind, seed)``."""
    return ClipBackbone(
        tiny_clip(kind, seed),
        tokenizer(),
        tiny_preprocessing(kind),
        name=f"tiny-{kind}",
        architecture=f"tiny-{kind}",
        device=torch.device("cpu"),
        precision=precision,
    )


class _OpenAIShell(nn.Module):
    """What OpenAI's archives look like from outside: CLIP's modules plus three integers as buffers."""

    def __init__(self, model: CLIP, resolution: int) -> None:
        super().__init__()
        self.visual = model.visual
        self.transformer = model.transformer
        self.token_embedding = model.token_embedding
        self.ln_final = model.ln_final
        self.positional_embedding = model.positional_embedding
        self.text_projection = model.text_projection
        self.logit_scale = model.logit_scale
        self.register_buffer("input_resolution", torch.tensor(resolution))
        self.register_buffer("context_length", torch.tensor(77))
        self.register_buffer("vocab_size", torch.tensor(49408))

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.visual(image)
        return features * self.logit_scale.exp()


def openai_archive(path: str | Path, kind: str = "vit", seed: int = 0) -> CLIP:
    """Write an OpenAI-style TorchScript archive: float16 matrices, three integer buffers, QuickGELU.

    Returns the float32 model that holds the same (float16-rounded) values, as the reference.
    """
    model = tiny_clip(kind, seed, head_width=64)
    size = tiny_config(kind)["vision_cfg"]["image_size"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "embedding" not in name:
                parameter.copy_(parameter.half().float())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated in newer PyTorch; the files remain
        traced = torch.jit.trace(_OpenAIShell(model, size), torch.zeros(1, 3, size, size), check_trace=False)
        with torch.no_grad():
            for name, parameter in traced.named_parameters():
                if parameter.ndim >= 2 and "embedding" not in name:
                    parameter.data = parameter.data.half()
        torch.jit.save(traced, str(path))
    return tiny_clip_like(model, kind)


def tiny_clip_like(model: CLIP, kind: str) -> CLIP:
    """A copy of ``model`` (head width 64) with its own storage."""
    copy = CLIP(**tiny_config(kind, head_width=64))
    copy.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    return copy.eval().requires_grad_(False)


def open_clip_safetensors(path: str | Path, kind: str = "vit", seed: int = 0) -> CLIP:
    """Write an open_clip state dict as safetensors; returns the model it came from (head width 64)."""
    model = tiny_clip(kind, seed, head_width=64)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, str(path))
    return model


def open_clip_local_dir(path: str | Path, kind: str = "vit", seed: int = 0) -> CLIP:
    """Write a folder with ``open_clip_config.json`` and weights, as open_clip's ``local-dir:`` reads it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_clip(kind, seed)
    config = {
        "model_cfg": tiny_config(kind),
        "preprocess_cfg": {
            "mean": list(MEAN),
            "std": list(STD),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        str(folder / "open_clip_model.safetensors"),
    )
    return model


def by_threads(work: Callable[[], Tensor]) -> list[Tensor]:
    """What ``work`` gives with one, two and three threads of torch."""
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(work())
    finally:
        torch.set_num_threads(before)
    return found
