"""The frozen ViT: from an image to the keys and values of its most attended tokens.

For each extracted block and each head h, token j receives on average a_j = (1/N) Σ_i A_ij of the attention A. The
floor(0.2·N) tokens of largest a_j are kept, with their keys and values of that head; N counts the class token too.

Read from a folder (or ``hf:ORG/NAME``) with the ``config.json`` and weights of a ViT of Hugging Face, such as
``google/vit-base-patch16-384``. The forward pass is written out here, so that transformers is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones import Preprocessing
from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.devices import check_precision, pick_device
from otpt.backbones.fingerprint import fingerprint
from otpt.backbones.hub import hub_file
from otpt.errors import OtptError
from otpt.files import parse_json
from otpt.methods.fpt.block import Block
from otpt.methods.fpt.variants import FROZEN_SIZE
from otpt.transfers import to_device

ISIC_MEAN = (0.76356, 0.54661, 0.57075)
ISIC_STD = (0.14041, 0.15191, 0.16923)
"""Of ISIC2018's training images, as FPT has them; both networks see images normalised so."""

KEPT = 0.2
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_RENAMED = (
    ("embeddings.cls_token", "class_token"),
    ("embeddings.position_embeddings", "positions"),
    ("embeddings.patch_embeddings.projection.", "patches."),
    ("encoder.layer.", "blocks."),
    (".attention.attention.", "."),
    (".attention.output.dense.", ".out."),
    (".intermediate.dense.", ".fc1."),
    (".output.dense.", ".fc2."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
)


class FrozenTower(nn.Module):
    """A ViT without its last norm and classifier, whose blocks can be looked into."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, patch = config["hidden_size"], config["patch_size"]
        side = config["image_size"] // patch
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + side * side, width))
        heads, hidden, eps = config["num_attention_heads"], config["intermediate_size"], config["layer_norm_eps"]
        self.blocks = nn.ModuleList(Block(width, heads, hidden, eps) for _ in range(config["num_hidden_layers"]))

    def tokens(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) → (B, 1 + n², W); positions are interpolated (bicubic) to the image's size."""
        patches = self.patches(pixels)
        grid = patches.shape[-1]
        own = round((self.positions.shape[1] - 1) ** 0.5)
        positions = self.positions[:, 1:].mT.unflatten(-1, (own, own))
        if grid != own:
            positions = F.interpolate(positions, size=(grid, grid), mode="bicubic", align_corners=False)
        x = torch.cat([self.class_token.expand(len(pixels), -1, -1), patches.flatten(2).mT], dim=1)
        return x + torch.cat([self.positions[:, :1], positions.flatten(2).mT], dim=1)

    def forward(self, pixels: Tensor, blocks: tuple[int, ...]) -> Tensor:
        """Keys and values of the kept tokens: (B, L, 2, H, k, W/H) of L blocks."""
        x = self.tokens(pixels)
        kept = int(KEPT * x.shape[1])
        found = []
        for number in range(max(blocks) + 1):
            block = self.blocks[number]
            assert isinstance(block, Block)
            q, k, v = block.heads(x)
            attention = (q @ k.mT / k.shape[-1] ** 0.5).softmax(dim=-1)
            if number in blocks:
                top = attention.mean(dim=-2).argsort(dim=-1, descending=True, stable=True)[..., :kept]
                index = top[..., None].expand(*top.shape, k.shape[-1])
                found.append(torch.stack([k.gather(-2, index), v.gather(-2, index)], dim=1))
            x = block.finish(x, attention @ v)
        return torch.stack(found, dim=1)


class FrozenViT:
    """A frozen ViT as FPT and the evaluation see it.

    Attributes: ``name``, ``architecture``, ``fingerprint``, ``family`` ("vit"), ``device``, ``precision``, ``dtype``,
    ``preprocessing`` (the frozen branch's), ``width`` W, ``heads`` H, ``depth`` (number of blocks).
    """

    def __init__(self, tower: FrozenTower, *, name: str, device: torch.device, precision: str, size: int) -> None:
        self.dtype, autocast = check_precision(precision, device)
        if autocast is not None:
            raise OtptError(f"FPT runs in float32 or float64, not in {precision!r}.")
        self.name, self.architecture, self.family = name, "ViT", "vit"
        self.device, self.precision = device, precision
        self.fingerprint = fingerprint(tower)
        self.preprocessing = Preprocessing(size, mean=ISIC_MEAN, std=ISIC_STD, resize_mode="squash")
        self.width, self.depth = tower.patches.out_channels, len(tower.blocks)
        self.heads = int(tower.blocks[0].num_heads)  # type: ignore[arg-type]
        self._tower = tower.to(device=device, dtype=self.dtype).eval().requires_grad_(False)

    compiled = False
    views_at_once = 1
    """For the feature pipeline, which opens images for FPT and encodes none."""

    @torch.no_grad()
    def keys_and_values(self, pixels: Tensor, blocks: tuple[int, ...]) -> Tensor:
        """(B, L, 2, H, k, W/H) of normalised pixels (B, 3, S, S), image by image."""
        found = [self._tower(to_device(each[None], self.device, self.dtype), blocks) for each in pixels]
        return torch.cat(found)


def load_frozen_vit(
    spec: str, *, device: str = "auto", precision: str = "float32", size: int = FROZEN_SIZE
) -> FrozenViT:
    """A ViT of Hugging Face: ``hf:google/vit-base-patch16-384``, or the path of such a folder.

    Args:
        size: pixels a side that the frozen branch sees.
    """
    place = pick_device(device)
    folder = _folder(spec)
    config = _config(folder / "config.json", spec)
    patch = config["patch_size"]
    if size % patch or size < 2 * patch:  # of fewer tokens than five none would be kept
        raise OtptError(f"Images of {size} pixels do not divide into patches of {patch}, two a side or more.")
    tower = FrozenTower(config)
    file = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), folder / _WEIGHTS[0])
    _fill(tower, read_checkpoint(file).state, file)
    return FrozenViT(tower, name=spec, device=place, precision=precision, size=size)


def _folder(spec: str) -> Path:
    repository = spec.removeprefix("hf:")
    if repository != spec and Path(repository).expanduser().is_dir():
        return _folder(repository)
    if repository != spec:
        hub_file(repository, *_WEIGHTS, what=spec)
        return hub_file(repository, "config.json", what=spec).parent
    folder = Path(spec).expanduser()
    if not (folder / "config.json").is_file():
        raise OtptError(
            f"FPT freezes a ViT of Hugging Face, and {spec!r} is none; expected hf:google/vit-base-patch16-384, or the "
            "path of such a folder."
        )
    return folder


def _config(path: Path, spec: str) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise OtptError(f"The file {str(path)!r} cannot be read as JSON.") from None
    if not isinstance(content, dict) or content.get("model_type") != "vit":
        raise OtptError(f"The model {spec!r} is not of type 'vit', which FPT freezes.")
    base = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "image_size": 224, "patch_size": 16, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    }  # fmt: skip
    config = {**base, **content}
    for name in (name for name, usual in base.items() if isinstance(usual, int)):
        if not isinstance(config[name], int) or config[name] < 1:
            raise OtptError(f"The {name} of {spec!r} is {config[name]!r}; expected a whole number above 0.")
    if config["hidden_act"] != "gelu":
        raise OtptError(f"The activation of {spec!r} is {config['hidden_act']!r}; expected 'gelu'.")
    return config


def _fill(tower: FrozenTower, state: dict[str, Tensor], file: Path) -> None:
    """Copy the weights under the names of the published file; a classifier, pooler and last norm are not needed."""
    renamed = {}
    for name, tensor in state.items():
        own_name = name.removeprefix("vit.")
        for theirs, ours in _RENAMED:
            own_name = own_name.replace(theirs, ours)
        renamed[own_name] = tensor.float()
    own = tower.state_dict()
    wrong = [f"{n} is missing" for n in own if n not in renamed]
    wrong += [f"{n} has another shape" for n in own if n in renamed and renamed[n].shape != own[n].shape]
    if wrong:
        raise OtptError(f"The weights in {str(file)!r} do not fit their config.json: {'; '.join(wrong[:3])}.")
    tower.load_state_dict({name: renamed[name] for name in own})
