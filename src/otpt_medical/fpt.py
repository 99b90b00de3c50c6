"""FPT's side network: a small ViT on small images, with prompts that attend to a frozen ViT.

Before block b its own m prompts P_b attend to the frozen keys and values (K, V) of that block:

    Q = P_b·A (or norm(P_b));   F = softmax(Q_h K_hᵀ/√d) V_h of each head h, joined;   f = dropout(F·B)

The m rows f, of the side network's width, are appended to its tokens for this block and dropped after it. The class
token of the last block is classified. No texts are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.errors import OtptError, unknown
from otpt.methods import Batch, Method, Output, Protocol, Setup, Task, register_system
from otpt.objectives import orthogonality
from otpt.transfers import to_device, to_host
from otpt.views import normalised, unit_pixels
from otpt_medical import FPT_BACKBONE, FROZEN_SIZE
from otpt_medical.frozen_vit import (
    ISIC_MEAN,
    ISIC_STD,
    Block,
    FrozenViT,
    KeysAndValues,
    join_heads,
    load_frozen_vit,
    split_heads,
)
from otpt_medical.trained import Notes, Trained, TrainedSystem, write_trained

ROWS = ("classifier", "prompts")
"""Rows that the orthogonality term can be applied to."""

VARIANTS = ("fpt", "fpt-plus")
"""``fpt``: all blocks, prompts of the side network's width, projected; images of 224. ``fpt-plus`` (the repository's
default): the second half of the blocks, prompts of the frozen width, normed, not projected; images of 128."""

PROMPTS, PATCH, DROPOUT = 16, 16, 0.5


class Fusion(nn.Module):
    """Map the prompts of one block to rows (B, m, width) for the side network."""

    def __init__(self, width: int, prompt_width: int, frozen_width: int, frozen_heads: int) -> None:
        super().__init__()
        self.num_heads = frozen_heads
        self.prompts = nn.Parameter(0.02 * torch.randn(PROMPTS, prompt_width))
        projected = prompt_width != frozen_width
        self.enter = nn.Linear(prompt_width, frozen_width) if projected else nn.LayerNorm(frozen_width)
        self.leave = nn.Linear(frozen_width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, keys_values: Tensor) -> Tensor:
        """Attend to ``keys_values`` (B, 2, H, k, d) of the frozen block."""
        keys, values = keys_values.unbind(dim=1)
        queries = split_heads(self.enter(self.prompts), self.num_heads).expand(len(keys), -1, -1, -1)
        fused = join_heads(F.scaled_dot_product_attention(queries, keys, values))
        rows: Tensor = self.dropout(self.leave(fused))
        return rows


class FptNetwork(nn.Module):
    """Trainable side network with prompts and classifier.

    Args:
        variant: one of :data:`VARIANTS`.
        frozen_width, frozen_heads, frozen_depth: of the frozen ViT. The side network has an eighth of its width, its
            heads, and one block for each of ``frozen_blocks``.
    """

    def __init__(self, variant: str, classes: int, frozen_width: int, frozen_heads: int, frozen_depth: int) -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise unknown("variant of FPT", variant, VARIANTS)
        self.arguments = (variant, classes, frozen_width, frozen_heads, frozen_depth)
        plus, width = variant == "fpt-plus", frozen_width // 8
        self.size = 128 if plus else 224
        self.frozen_blocks = tuple(range(frozen_depth // 2 if plus else 0, frozen_depth))
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (self.size // PATCH) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, frozen_heads, 4 * width) for _ in self.frozen_blocks)
        prompt_width = frozen_width if plus else width
        self.fusions = nn.ModuleList(
            Fusion(width, prompt_width, frozen_width, frozen_heads) for _ in self.frozen_blocks
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pixels: Tensor, keys_values: Tensor) -> Tensor:
        """Compute logits (B, C) from small images (B, 3, S, S) and frozen keys and values (B, L, 2, H, k, d)."""
        patches = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(pixels), -1, -1), patches], dim=1) + self.positions
        for i, (block, fusion) in enumerate(zip(self.blocks, self.fusions, strict=True)):
            x = block(torch.cat([x, fusion(keys_values[:, i])], dim=1))[:, : x.shape[1]]
        logits: Tensor = self.classifier(self.norm(x[:, 0]))
        return logits

    def orthogonality(self, rows: str = "classifier") -> Tensor:
        """Compute L_O of the unit rows of the classifier (C, width), or the mean L_O of each block's unit prompts."""
        if rows not in ROWS:
            raise unknown("rows to make orthogonal", rows, ROWS)
        if rows == "classifier":
            return orthogonality(F.normalize(self.classifier.weight, dim=-1))
        prompts = torch.stack([fusion.prompts for fusion in self.fusions])  # type: ignore[misc]
        return orthogonality(F.normalize(prompts, dim=-1)).mean()


def side_pixels(image: Image.Image, size: int) -> Tensor:
    """Resize an image to a square and normalise it for the side network at test time: (3, size, size)."""
    return normalised(unit_pixels(image, size, resize_mode="squash"), ISIC_MEAN, ISIC_STD)


def stacked(images: Sequence[Tensor], like: FrozenViT) -> Tensor:
    """Stack images (3, S, S) to a batch on the frozen ViT's device."""
    return to_device(torch.stack(list(images)), like.device, like.dtype)


def write_fpt(path: Path, network: FptNetwork, notes: Notes) -> None:
    """Write a trained network with the arguments that it was made with."""
    write_trained(path, network.state_dict(), notes.model_copy(update={"network": network.arguments}))


def fpt_network(file: Trained) -> FptNetwork:
    """Return the network in a file of :func:`write_fpt`."""
    if file.notes.network is None:
        raise OtptError(f"The file {str(file.path)!r} was not written by 'otpt train fpt'.")
    network = FptNetwork(*file.notes.network)
    tensors = file.need(network.state_dict())
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise OtptError(f"The tensors of {str(file.path)!r} do not fit its network: {reason}; retrain it.") from error
    return network.eval().requires_grad_(False)


class FptGroup:
    """Methods of FPT, a :class:`otpt.methods.Group`. Deterministic."""

    def __init__(self, setup: Setup, frozen: FrozenViT, networks: Sequence[FptNetwork], keep: Path | None) -> None:
        self.prompt, self.methods = Fpt.prompt, setup.methods
        self._frozen = frozen
        self._official = setup.protocol.official_precision
        self._networks = [network.to(frozen.device, frozen.dtype) for network in networks]
        used = {network.frozen_blocks for network in networks}
        self._keys_values = {blocks: KeysAndValues(frozen, blocks, keep) for blocks in used}

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.Group`."""
        logits: list[Tensor] = []
        for image in batch.images:
            logits += self._logits(*image.open())
        outputs = [Output.of_clean(row, official=self._official) for row in to_host(logits)]
        return [outputs[i :: len(self._networks)] for i in range(len(self._networks))]

    @torch.no_grad()
    def _logits(self, image: Image.Image, digest: str) -> list[Tensor]:
        """Return the logits (1, C) of an image under each network."""
        frozen = {blocks: find(image, digest)[None] for blocks, find in self._keys_values.items()}
        return [
            network(stacked([side_pixels(image, network.size)], self._frozen), frozen[network.frozen_blocks])
            for network in self._networks
        ]


@register_system
class Fpt(TrainedSystem):
    """FPT: a side network on the keys and values of a frozen ViT, no texts."""

    name: ClassVar[str] = "fpt"
    prompt: ClassVar[str] = "no text"
    needs_text_encoder: ClassVar[bool] = False

    frozen_size: int | None = Field(None, ge=1, description=f"pixels that the frozen ViT sees (default: {FROZEN_SIZE})")
    keep_frozen: Path | None = Field(None, description="folder for keys and values, 15 MB per image")

    def load_model(self, spec: str | None, device: str, precision: str) -> Backbone:
        """Load the frozen ViT; see :class:`otpt.evaluation.EvaluationSystem`."""
        size = FROZEN_SIZE if self.frozen_size is None else self.frozen_size
        return load_frozen_vit(spec or FPT_BACKBONE, size, precision, device)

    def check(self, setup: Setup) -> None:
        """See :class:`otpt.methods.System`."""
        self._networks(setup, self._frozen(setup))

    def prepare(self, setup: Setup) -> Sequence[FptGroup]:
        """See :class:`otpt.methods.System`."""
        frozen = self._frozen(setup)
        keep = None if self.keep_frozen is None else self.keep_frozen.expanduser()
        return [FptGroup(setup, frozen, self._networks(setup, frozen), keep)]

    def _frozen(self, setup: Setup) -> FrozenViT:
        backbone = setup.backbone
        if not isinstance(backbone, FrozenViT):
            raise OtptError(f"Method {setup.methods[0].name!r} needs a frozen ViT, such as {FPT_BACKBONE}.")
        size = backbone.preprocessing.size
        if self.frozen_size not in (None, size):
            raise OtptError(f"frozen-size is {self.frozen_size}, but the ViT was loaded for {size} pixels.")
        return backbone

    def _networks(self, setup: Setup, frozen: FrozenViT) -> list[FptNetwork]:
        self.check_files(setup.methods)
        return [self._network(setup, frozen, self.file_for(method)) for method in setup.methods]

    def _network(self, setup: Setup, frozen: FrozenViT, file: Trained) -> FptNetwork:
        file.check(setup.task.classes, frozen.fingerprint)
        size, trained_size = frozen.preprocessing.size, file.notes.frozen_size
        if trained_size not in (None, size):  # keys and values depend on it, but no shape does
            raise OtptError(
                f"The file {str(file.path)!r} was trained with a frozen ViT that sees {trained_size} pixels, not "
                f"{size}; give --set frozen-size={trained_size}."
            )
        return fpt_network(file)

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`otpt.methods.System`."""
        return self.prompt
