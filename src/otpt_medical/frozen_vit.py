"""FPT's frozen ViT: from an image to the keys and values of its most attended tokens.

For each extracted block and each head h, token j receives on average a_j = (1/N) Σ_i A_ij of the attention A. The
floor(0.2·N) tokens of largest a_j are selected, with their keys and values of that head; N counts the class token too.

Read from a folder (or ``hf:ORG/NAME``) with the ``config.json`` and weights of a ViT of Hugging Face, such as
``google/vit-base-patch16-384``. transformers is not needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from PIL import Image
from pydantic import BaseModel, ValidationError
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones import (
    Backbone,
    Preprocessing,
    TextEncoder,
    check_precision,
    fingerprint,
    hub_file,
    pick_device,
    read_checkpoint,
)
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.records import describe_mistake
from otpt.transfers import to_device
from otpt.views import normalised, unit_pixels
from otpt_medical import FROZEN_SIZE
from otpt_medical.trained import read_trained

ISIC_MEAN = (0.76356, 0.54661, 0.57075)
ISIC_STD = (0.14041, 0.15191, 0.16923)
"""Of ISIC2018's training images, as FPT has them; both networks see images normalised by these."""

SELECTED = 0.2
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_RENAMED = (
    ("vit.", ""),
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


class VitConfig(BaseModel):
    """Fields of ``config.json`` that are used; the defaults are those of transformers."""

    model_type: str = ""
    hidden_act: str = "gelu"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    image_size: int = 224
    patch_size: int = 16
    layer_norm_eps: float = 1e-12


class Block(nn.Module):
    """x + Attention(norm1(x)), then x + MLP(norm2(x)) with exact GELU; tokens (B, N, W)."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.num_heads = heads
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        q, k, v = self.heads(x)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, H, N, W/H)."""
        normed = self.norm1(x)
        return (
            split_heads(self.query(normed), self.num_heads),
            split_heads(self.key(normed), self.num_heads),
            split_heads(self.value(normed), self.num_heads),
        )

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the output from the block's input (B, N, W) and the attended values (B, H, N, W/H)."""
        x = x + self.out(join_heads(attended))
        output: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return output


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split (…, N, W) into (…, H, N, W/H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def join_heads(x: Tensor) -> Tensor:
    """Join (…, H, N, W/H) to (…, N, W)."""
    return x.transpose(-3, -2).flatten(-2)


class VitTower(nn.Module):
    """ViT without its last norm and classifier.

    Attributes:
        width, heads, depth: width W, number of heads H and number of blocks.
        patch: side of a patch in pixels.
    """

    def __init__(self, config: VitConfig, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.width, self.heads, self.depth = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
        self.patch = config.patch_size
        side = config.image_size // self.patch
        self.patches = nn.Conv2d(3, self.width, self.patch, stride=self.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, self.width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + side * side, self.width))
        hidden, eps = config.intermediate_size, config.layer_norm_eps
        self.blocks = nn.ModuleList(Block(self.width, self.heads, hidden, eps) for _ in range(self.depth))
        self.load_state_dict({name: tensor for name, tensor in _renamed(state) if name in self.state_dict()})
        self.eval().requires_grad_(False)

    def tokens(self, pixels: Tensor) -> Tensor:
        """Embed pixels (B, 3, S, S) to (B, 1 + n², W), with bicubic interpolation of the positions."""
        patches = self.patches(pixels)
        grid = patches.shape[-1]
        side = round((self.positions.shape[1] - 1) ** 0.5)
        positions = self.positions[:, 1:].mT.unflatten(-1, (side, side))
        if grid != side:
            positions = F.interpolate(positions, size=(grid, grid), mode="bicubic", align_corners=False)
        x = torch.cat([self.class_token.expand(len(pixels), -1, -1), patches.flatten(2).mT], dim=1)
        return x + torch.cat([self.positions[:, :1], positions.flatten(2).mT], dim=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the class token of the last block (B, W) of pixels (B, 3, S, S)."""
        x = self.tokens(pixels)
        for block in self.blocks:
            x = block(x)
        return x[:, 0]

    def keys_values(self, pixels: Tensor, blocks: tuple[int, ...]) -> Tensor:
        """Return keys and values (B, L, 2, H, k, W/H) of the selected tokens of pixels (B, 3, S, S)."""
        x = self.tokens(pixels)
        count = int(SELECTED * x.shape[1])
        selected = []
        for number in range(max(blocks) + 1):
            block = self.blocks[number]
            assert isinstance(block, Block)
            q, k, v = block.heads(x)
            attention = (q @ k.mT / k.shape[-1] ** 0.5).softmax(dim=-1)
            if number in blocks:
                top = attention.mean(dim=-2).argsort(dim=-1, descending=True, stable=True)[..., :count]
                index = top[..., None].expand(*top.shape, k.shape[-1])
                selected.append(torch.stack([k.gather(-2, index), v.gather(-2, index)], dim=1))
            x = block.finish(x, attention @ v)
        return torch.stack(selected, dim=1)


class FrozenViT(Backbone):
    """Backbone of images only, for images of ``size`` pixels; FPT uses the keys and values of its blocks.

    Attributes:
        tower: the ViT.
    """

    name: str
    fingerprint: str
    preprocessing: Preprocessing
    embed_dim: int
    text: TextEncoder | None = None
    architecture = "ViT"
    family = "vit"

    def __init__(self, tower: VitTower, name: str, *, device: torch.device, precision: str, size: int) -> None:
        self.dtype, autocast, _ = check_precision(precision, device)
        if autocast is not None:
            raise OtptError(f"FPT runs in float32 or float64, not in {precision!r}.")
        if size % tower.patch or size < 2 * tower.patch:  # of fewer than five tokens none would be selected
            raise OtptError(f"Images of {size} pixels do not divide into patches of {tower.patch}, two a side or more.")
        self.name, self.device, self.precision = name, device, precision
        self.fingerprint = fingerprint(tower)
        self.preprocessing = Preprocessing(size, mean=ISIC_MEAN, std=ISIC_STD, resize_mode="squash")
        self.embed_dim = tower.width
        self.tower = tower.to(device=device, dtype=self.dtype)

    @property
    def views_at_once(self) -> int:
        """One, because an image of 512 pixels fills the cores."""
        return 1

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        """Return the class tokens of the last block (N, W)."""
        parts = to_device(pixels, self.device, self.dtype).split(chunk or self.chunk)
        features = torch.cat([self.tower(part) for part in parts])
        return F.normalize(features, dim=-1) if unit else features

    def keys_values(self, pixels: Tensor, blocks: tuple[int, ...]) -> Tensor:
        """Return keys and values (B, L, 2, H, k, W/H) of the selected tokens of pixels (B, 3, S, S)."""
        return self.tower.keys_values(to_device(pixels, self.device, self.dtype), blocks)


class KeysAndValues:
    """Keys and values of images, which are never augmented, so that they can be stored.

    Args:
        folder: one safetensors file per image, of 15 MB for ViT-B at 512 pixels; None to compute them each time.
    """

    def __init__(self, frozen: FrozenViT, blocks: tuple[int, ...], folder: Path | None = None) -> None:
        self._frozen, self._blocks, self._folder = frozen, blocks, folder
        numbers = f"{frozen.fingerprint} {frozen.preprocessing} {blocks} {frozen.precision}"
        self._key = hashlib.sha256(numbers.encode()).hexdigest()[:16]

    def __call__(self, image: Image.Image, digest: str) -> Tensor:
        """Return keys and values (L, 2, H, k, d) of an image, cached by the digest of its content."""
        path = None if self._folder is None else self._folder / self._key / f"{digest}.safetensors"
        if path is not None and path.is_file():
            try:
                return to_device(read_trained(path).tensors["keys_values"], self._frozen.device)
            except (OtptError, KeyError):
                pass  # corrupt: recompute and overwrite
        recipe = self._frozen.preprocessing
        pixels = normalised(unit_pixels(image, recipe.size, resize_mode=recipe.resize_mode), recipe.mean, recipe.std)
        with torch.no_grad():
            keys_values = self._frozen.keys_values(pixels[None], self._blocks)[0]
        if path is not None:
            write_atomically(path, save({"keys_values": keys_values.cpu().contiguous()}), durable=False)
        return keys_values


def load_frozen_vit(spec: str, size: int = FROZEN_SIZE, precision: str = "float32", device: str = "auto") -> FrozenViT:
    """Load a ViT of Hugging Face for images of ``size`` pixels: ``hf:google/vit-base-patch16-384``, or its folder."""
    place = pick_device(device)
    folder = Path(spec.removeprefix("hf:")).expanduser()
    if spec.startswith("hf:") and not folder.is_dir():
        hub_file(spec.removeprefix("hf:"), *_WEIGHTS, what=spec)
        folder = hub_file(spec.removeprefix("hf:"), "config.json", what=spec).parent
    try:
        config = VitConfig.model_validate_json((folder / "config.json").read_text(encoding="utf-8"))
        if config.model_type != "vit" or config.hidden_act != "gelu":
            raise ValueError("it is not a ViT with GELU")
        file = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), folder / _WEIGHTS[0])
        tower = VitTower(config, read_checkpoint(file).state)
    except (OSError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, ValidationError):
            reason = describe_mistake(error)
        else:
            reason = str(error).splitlines()[:2][-1].strip()
        raise OtptError(f"The folder {str(folder)!r} holds no ViT that FPT can freeze: {reason}") from None
    return FrozenViT(tower, spec, device=place, precision=precision, size=size)


def _renamed(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under the names of :class:`VitTower`."""
    for key, tensor in state.items():
        name = key
        for theirs, ours in _RENAMED:
            name = name.replace(theirs, ours)
        yield name, tensor.float()
