"""Prompts that were learned from labelled images: of CoOp, of CoCoOp and of MaPLe. All tensors are float32."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.errors import OtptError
from otpt.prompts.prompt import Prompt


@dataclass(frozen=True, eq=False)
class CoopContext:
    """CoOp: the context's vectors are learned, the towers stay as they are.

    Attributes:
        vectors: (n, W), shared by all classes; or (C, n, W), one context per class.
        class_names: the class list it was learned for, if known.
        images: keys of the images it was learned from, if known.
    """

    vectors: Tensor
    class_names: tuple[str, ...] | None = None
    images: tuple[str, ...] = field(default=(), kw_only=True)
    kind: ClassVar[str] = "coop"

    def prompt(self) -> Prompt:
        """The context as a prompt to start from."""
        return Prompt.learned(self.vectors, class_names=self.class_names)

    def state(self) -> dict[str, Tensor]:
        """Tensors by the names of CoOp's own checkpoints."""
        return {"ctx": self.vectors}


@dataclass(frozen=True, eq=False)
class CocoopContext:
    """CoCoOp: ctx_x = ctx + W₂·relu(W₁x + b₁) + b₂, a separate context for each image with feature x.

    Attributes:
        vectors: (n, W).
        weight1, bias1: (H, D) and (H,); H = D/16.
        weight2, bias2: (W, H) and (W,).
        images: keys of the images it was learned from, if known.
    """

    vectors: Tensor
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    images: tuple[str, ...] = field(default=(), kw_only=True)
    kind: ClassVar[str] = "cocoop"

    def prompt(self) -> Prompt:
        """The part of the context that all images share."""
        return Prompt.learned(self.vectors)

    def to(self, device: torch.device, dtype: torch.dtype) -> CocoopContext:
        """The same on another device."""
        placed = (each.to(device, dtype) for each in (self.vectors, *self._net()))
        return CocoopContext(*placed, images=self.images)

    def starts(self, features: Tensor) -> Tensor:
        """Image features (B, D) → initial contexts (B, n, W)."""
        vectors, *net = (each.to(features) for each in (self.vectors, *self._net()))
        hidden = F.relu(F.linear(features, net[0], net[1]))
        return vectors + F.linear(hidden, net[2], net[3])[:, None]

    def check_fits(self, width: int) -> None:
        """``OtptError`` if the backbone's image features are not D = ``width`` wide."""
        if self.weight1.shape[1] != width:
            raise OtptError(
                f"CoCoOp's net takes image features of width {self.weight1.shape[1]}; this backbone's are {width} "
                "wide. Take a context that was learned with this backbone."
            )

    def state(self) -> dict[str, Tensor]:
        """Tensors by the names of CoCoOp's own checkpoints."""
        names = ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias")
        net = {f"meta_net.{name}": tensor for name, tensor in zip(names, self._net(), strict=True)}
        return {"ctx": self.vectors, **net}

    def _net(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight1, self.bias1, self.weight2, self.bias2


@dataclass(frozen=True, eq=False)
class MaplePrompts:
    """MaPLe: n prompts enter each of the first J layers of both towers; the image side's follow from the text side's.

    P_l = T_l·A_lᵀ + a_l for l = 0 … J − 1: T_0 is the context, T_1 … the deep prompts, (A_l, a_l) the couplings.

    Attributes:
        text: (J, n, W), T.
        weights, biases: (J, W_v, W) and (J, W_v), A and a.
        images: keys of the images they were learned from, if known.
    """

    text: Tensor
    weights: Tensor
    biases: Tensor
    images: tuple[str, ...] = field(default=(), kw_only=True)
    kind: ClassVar[str] = "maple"

    @property
    def depth(self) -> int:
        """J."""
        return len(self.text)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All that is tuned and trained."""
        return self.text, self.weights, self.biases

    def visual(self) -> Tensor:
        """(J, n, W_v), P."""
        return visual_prompts(*self.tensors)

    def state(self) -> dict[str, Tensor]:
        """Tensors by the names of MaPLe's own checkpoints."""
        state = {"ctx": self.text[0], "proj.weight": self.weights[0], "proj.bias": self.biases[0]}
        for i in range(self.depth - 1):
            state[f"compound_prompts_text.{i}"] = self.text[i + 1]
            state[f"compound_prompt_projections.{i}.weight"] = self.weights[i + 1]
            state[f"compound_prompt_projections.{i}.bias"] = self.biases[i + 1]
        return {f"prompt_learner.{name}": tensor for name, tensor in state.items()}


LearnedPrompt = CoopContext | CocoopContext | MaplePrompts
"""What a file of a learned prompt holds."""


def context_alone(learned: LearnedPrompt) -> CoopContext:
    """The context as one of CoOp: MaPLe's without deep prompts and image side, CoCoOp's without its net."""
    if isinstance(learned, CoopContext):
        return learned
    vectors = learned.text[0] if isinstance(learned, MaplePrompts) else learned.vectors
    return CoopContext(vectors, images=learned.images)


def visual_prompts(text: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """P_l = T_l·A_lᵀ + a_l: (J, n, W), (J, W_v, W), (J, W_v) → (J, n, W_v)."""
    return torch.baddbmm(biases[:, None], text, weights.mT)


def fingerprint(learned: LearnedPrompt) -> str:
    """32 hexadecimal digits of kind, names, shapes and values; and of the classes of CoOp's shared context.

    Predictions depend on these classes where ``dac-base`` asks for them.
    """
    digest = hashlib.sha256(learned.kind.encode())
    if isinstance(learned, CoopContext) and learned.class_names is not None and learned.vectors.ndim == 2:
        digest.update(json.dumps(learned.class_names).encode())
    for name, tensor in sorted(learned.state().items()):
        digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
