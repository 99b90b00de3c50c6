"""Prompts learned from labelled images (CoOp, CoCoOp, MaPLe) and their files.

Files are Dassl checkpoints or safetensors; the names of the tensors determine the kind:

| kind | tensors |
|---|---|
| CoOp | ``ctx`` (n, W), or (C, n, W) |
| CoCoOp | ``ctx`` (n, W), ``meta_net.linear1.weight`` (H, D), ``.bias``, |
| | ``meta_net.linear2.weight`` (W, H), ``.bias`` |
| MaPLe | after ``prompt_learner.``: ``ctx`` (n, W), ``proj.weight`` (W_v, W), ``proj.bias``, |
| | ``compound_prompts_text.i`` (n, W), ``compound_prompt_projections.i.weight`` (W_v, W), ``.bias``; |
| | ours also ``source.means`` and ``source.variances`` (B, T, W_v) |

Other tensors are ignored: ``token_prefix`` and ``token_suffix`` are the class names of the training, and a file of
MaPLe also holds CLIP's towers. All tensors are converted to float32.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import read_tensors
from otpt.errors import OtptError
from otpt.files import parse_json
from otpt.prompts.prompt import Prompt

ALONE = "coop="
"""Prefix of a file name: use the file's context as one of CoOp, and nothing else."""
_NET = ("meta_net.linear1.weight", "meta_net.linear1.bias", "meta_net.linear2.weight", "meta_net.linear2.bias")


@dataclass(frozen=True, eq=False)
class CoopContext:
    """CoOp: learned context vectors; the towers are unchanged.

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
        """The context as an initial prompt."""
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
        """A copy on another device."""
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
        return {"ctx": self.vectors, **dict(zip(_NET, self._net(), strict=True))}

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
        means, variances: (B, T + n, W_v) of the tokens that enter the first B blocks of the image tower, over source
            images, position by position; None if they are not known.
    """

    text: Tensor
    weights: Tensor
    biases: Tensor
    images: tuple[str, ...] = field(default=(), kw_only=True)
    means: Tensor | None = field(default=None, kw_only=True)
    variances: Tensor | None = field(default=None, kw_only=True)
    kind: ClassVar[str] = "maple"

    @property
    def depth(self) -> int:
        """J."""
        return len(self.text)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All tensors that are tuned and trained."""
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
        if self.means is not None and self.variances is not None:
            state |= {"source.means": self.means, "source.variances": self.variances}
        return {f"prompt_learner.{name}": tensor for name, tensor in state.items()}


LearnedPrompt: TypeAlias = CoopContext | CocoopContext | MaplePrompts
"""The content of a learned prompt's file."""


def context_alone(learned: LearnedPrompt) -> CoopContext:
    """Return the context as one of CoOp, without MaPLe's deep prompts and image side or CoCoOp's net."""
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


ContextSource: TypeAlias = str | Path | LearnedPrompt
"""A file, ``coop=`` and a file, or the content of one."""


def read_context(source: ContextSource) -> LearnedPrompt:
    """Return the learned prompt of a source."""
    if not isinstance(source, (str, Path)):
        return source
    path = Path(os.path.expanduser(str(source).removeprefix(ALONE)))
    learned = _read(path, path.stat().st_mtime_ns if path.is_file() else 0)
    return context_alone(learned) if str(source).startswith(ALONE) else learned


def read_contexts(sources: Sequence[ContextSource]) -> dict[str, LearnedPrompt]:
    """Return the learned prompts of several sources by their init: "coop", "cocoop", "maple"."""
    found: dict[str, LearnedPrompt] = {}
    for source in sources:
        learned = read_context(source)
        if learned.kind in found:
            raise OtptError(f"Two prompts of the kind {learned.kind!r} were given; expected one per data set.")
        found[learned.kind] = learned
    return found


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> LearnedPrompt:
    """Read and cache: a file of MaPLe holds all of CLIP next to its prompts."""
    return read_learned(path)


def read_learned(path: str | Path) -> LearnedPrompt:
    """Read the learned prompt of a file."""
    tensors, notes = read_tensors(Path(path), what="learned prompt", ignore_objects=True)
    inner = {name.removeprefix("prompt_learner."): tensor.float() for name, tensor in tensors.items()}
    parts = ("proj.", "compound_prompt", "meta_net.", "source.")
    own = {name: tensor for name, tensor in inner.items() if name == "ctx" or name.startswith(parts)}
    check_values(path, own)
    try:
        return _from_tensors(own, notes)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:  # a missing tensor, or shapes that do not fit
        shown = ", ".join(list(tensors)[:6]) or "no tensor"
        reason = " ".join(str(error).split())
        missing = f"{reason} is missing" if isinstance(error, KeyError) else reason
        raise OtptError(f"The file {str(path)!r} is not a learned prompt: {missing}; it holds {shown}.") from error


def _from_tensors(own: Mapping[str, Tensor], notes: Mapping[str, str]) -> LearnedPrompt:
    """Build a prompt and compute with it once, which checks the shapes."""
    images = tuple(parse_json(notes.get("images", "[]")))
    if any(name.startswith(("compound_prompt", "proj.")) for name in own):
        deep = range(sum(name.startswith("compound_prompts_text.") for name in own))
        texts = ["ctx", *(f"compound_prompts_text.{i}" for i in deep)]
        couplings = ["proj", *(f"compound_prompt_projections.{i}" for i in deep)]
        stacks = texts, [f"{name}.weight" for name in couplings], [f"{name}.bias" for name in couplings]
        text, weights, biases = (torch.stack([own[name] for name in names]) for names in stacks)
        known = "source.means" in own
        source = {"means": own["source.means"], "variances": own["source.variances"]} if known else {}
        maple = MaplePrompts(text, weights, biases, images=images, **source)
        maple.visual()
        return maple
    if any(name.startswith("meta_net.") for name in own):
        cocoop = CocoopContext(own["ctx"], *(own[name] for name in _NET), images=images)
        cocoop.starts(torch.zeros(1, cocoop.weight1.shape[-1]))
        return cocoop
    class_names = parse_json(notes["class_names"]) if "class_names" in notes else None
    coop = CoopContext(own["ctx"], None if class_names is None else tuple(class_names), images=images)
    coop.prompt()
    return coop


def write_learned(path: str | Path, learned: LearnedPrompt) -> bytes:
    """Return the bytes of a file: safetensors by the suffix of ``path``, else a checkpoint for Dassl's trainers."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in learned.state().items()}
    class_names = learned.class_names if isinstance(learned, CoopContext) else None
    notes = {} if class_names is None else {"class_names": json.dumps(class_names, ensure_ascii=False)}
    if learned.images:
        notes["images"] = json.dumps(learned.images)
    if Path(path).suffix == ".safetensors":
        return save(state, notes)
    buffer = io.BytesIO()
    torch.save({"state_dict": state, "epoch": 0, "val_result": None, **notes}, buffer)
    return buffer.getvalue()


def check_values(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise :class:`OtptError` for the first tensor that is empty or not finite."""
    for name, tensor in tensors.items():
        if not tensor.numel() or not bool(tensor.isfinite().all()):
            raise OtptError(f"The file {str(path)!r} is damaged: {name} is empty or holds values that are not finite.")
