"""Prompts learned from labelled images (CoOp, CoCoOp, MaPLe) and their files.

Files are Dassl checkpoints or safetensors. The tensor names determine the kind:

| kind | tensors |
|---|---|
| CoOp | ``ctx`` (n, W), or (C, n, W) |
| CoCoOp | ``ctx`` (n, W), ``meta_net.linear1.weight`` (H, D), ``.bias``, |
| | ``meta_net.linear2.weight`` (W, H), ``.bias`` |
| MaPLe | after ``prompt_learner.``: ``ctx`` (n, W), ``proj.weight`` (W_v, W), ``proj.bias``, |
| | ``compound_prompts_text.i`` (n, W), ``compound_prompt_projections.i.weight`` (W_v, W), ``.bias``; |
| | ours also ``source.means`` and ``source.variances`` (B, T, W_v) |

Other tensors are ignored: ``token_prefix`` and ``token_suffix`` contain the class names of the training, and files of
MaPLe also contain the towers of CLIP. All tensors are converted to float32.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import read_tensors
from otpt.errors import OtptError
from otpt.files import parse_json
from otpt.prompts.prompt import Prompt

ALONE = "coop="
"""Prefix of a file name: use only the context of the file, as in CoOp."""
_NET = ("meta_net.linear1.weight", "meta_net.linear1.bias", "meta_net.linear2.weight", "meta_net.linear2.bias")


class _Learned(ABC):
    """Base class of learned prompts, which are equal if their fingerprints are.

    Attributes:
        kind: init that uses it.
        trainer: what makes its files.
    """

    kind: ClassVar[str]
    trainer: ClassVar[str]

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors under the names of published checkpoints."""

    def _facts(self) -> str:
        """Return what the fingerprint includes besides the tensors."""
        return ""

    @cached_property
    def digest(self) -> str:
        """Digest of kind, tensor names, shapes and values, as 32 hexadecimal digits; see :func:`fingerprint`."""
        digest = hashlib.sha256(f"{self.kind}{self._facts()}".encode())
        for name, tensor in sorted(self.state().items()):
            digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, _Learned) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {tuple(tensor.shape)}" for name, tensor in self.state().items())
        return f"{type(self).__name__}({shapes[:200]}, digest={self.digest!r})"


@dataclass(frozen=True, eq=False, repr=False)
class CoopContext(_Learned):
    """Learned context of CoOp.

    Attributes:
        vectors: (n, W), shared by all classes, or (C, n, W), one context per class.
        class_names: class names of the training, if known.
        images: keys of the training images, if known.
    """

    vectors: Tensor
    class_names: tuple[str, ...] | None = None
    images: tuple[str, ...] = field(default=(), kw_only=True)
    kind: ClassVar[str] = "coop"
    trainer: ClassVar[str] = "'otpt train coop'"

    def prompt(self) -> Prompt:
        """Return the context as an initial prompt."""
        return Prompt.learned(self.vectors, class_names=self.class_names)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors under the names of CoOp checkpoints."""
        return {"ctx": self.vectors}

    def _facts(self) -> str:
        """Return the class names of a shared context, on which ``dac-base`` depends."""
        shared = self.vectors.ndim == 2
        return json.dumps(self.class_names) if shared and self.class_names is not None else ""


@dataclass(frozen=True, eq=False, repr=False)
class CocoopContext(_Learned):
    """Learned context and meta-net of CoCoOp: ctx_x = ctx + W₂·relu(W₁x + b₁) + b₂ for an image feature x.

    Attributes:
        vectors: (n, W).
        weight1, bias1: (H, D) and (H,), with H = D/16.
        weight2, bias2: (W, H) and (W,).
        images: keys of the training images, if known.
    """

    vectors: Tensor
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    images: tuple[str, ...] = field(default=(), kw_only=True)
    kind: ClassVar[str] = "cocoop"
    trainer: ClassVar[str] = "the CoCoOp trainer of https://github.com/KaiyangZhou/CoOp"

    def prompt(self) -> Prompt:
        """Return the context shared by all images as an initial prompt."""
        return Prompt.learned(self.vectors)

    def to(self, device: torch.device, dtype: torch.dtype) -> CocoopContext:
        """Return a copy with another device and dtype."""
        placed = (tensor.to(device, dtype) for tensor in (self.vectors, *self._net()))
        return CocoopContext(*placed, images=self.images)

    def starts(self, features: Tensor) -> Tensor:
        """Return the initial contexts (B, n, W) of image features (B, D)."""
        vectors, *net = (tensor.to(features) for tensor in (self.vectors, *self._net()))
        hidden = F.relu(F.linear(features, net[0], net[1]))
        return vectors + F.linear(hidden, net[2], net[3])[:, None]

    def check_fits(self, width: int) -> None:
        """Raise ``OtptError`` if the meta-net does not accept image features of dimension D = ``width``."""
        if self.weight1.shape[1] != width:
            raise OtptError(
                f"The meta-net of CoCoOp expects image features of width {self.weight1.shape[1]}, but this backbone "
                f"has width {width}; use a context learned with this backbone."
            )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors under the names of CoCoOp checkpoints."""
        return {"ctx": self.vectors, **dict(zip(_NET, self._net(), strict=True))}

    def _net(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight1, self.bias1, self.weight2, self.bias2


@dataclass(frozen=True, eq=False, repr=False)
class MaplePrompts(_Learned):
    """Learned prompts of MaPLe: n prompts in each of the first J layers of both towers.

    Image prompts are P_l = T_l·A_lᵀ + a_l for l = 0 … J − 1, with the context T_0, deep text prompts T_1 … T_{J−1} and
    couplings (A_l, a_l).

    Attributes:
        text: text prompts T (J, n, W).
        weights, biases: couplings A (J, W_v, W) and a (J, W_v).
        images: keys of the training images, if known.
        means, variances: (B, T + n, W_v), statistics of the inputs of the image tower's first B blocks over the source
            images, per position, or None.
    """

    text: Tensor
    weights: Tensor
    biases: Tensor
    images: tuple[str, ...] = field(default=(), kw_only=True)
    means: Tensor | None = field(default=None, kw_only=True)
    variances: Tensor | None = field(default=None, kw_only=True)
    kind: ClassVar[str] = "maple"
    trainer: ClassVar[str] = "'otpt train maple'"

    @property
    def depth(self) -> int:
        """Number J of layers with prompts."""
        return len(self.text)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Trainable tensors."""
        return self.text, self.weights, self.biases

    def visual(self) -> Tensor:
        """Return the image prompts P (J, n, W_v)."""
        return visual_prompts(*self.tensors)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors under the names of MaPLe checkpoints."""
        state = {"ctx": self.text[0], "proj.weight": self.weights[0], "proj.bias": self.biases[0]}
        for i in range(self.depth - 1):
            state[f"compound_prompts_text.{i}"] = self.text[i + 1]
            state[f"compound_prompt_projections.{i}.weight"] = self.weights[i + 1]
            state[f"compound_prompt_projections.{i}.bias"] = self.biases[i + 1]
        if self.means is not None and self.variances is not None:
            state |= {"source.means": self.means, "source.variances": self.variances}
        return {f"prompt_learner.{name}": tensor for name, tensor in state.items()}


LearnedPrompt: TypeAlias = CoopContext | CocoopContext | MaplePrompts
"""Content of a file of learned prompts."""


def context_alone(learned: LearnedPrompt) -> CoopContext:
    """Return only the context, as in CoOp, without MaPLe's other prompts or CoCoOp's meta-net."""
    if isinstance(learned, CoopContext):
        return learned
    vectors = learned.text[0] if isinstance(learned, MaplePrompts) else learned.vectors
    return CoopContext(vectors, images=learned.images)


def visual_prompts(text: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """Return P_l = T_l·A_lᵀ + a_l: (J, n, W), (J, W_v, W), (J, W_v) → (J, n, W_v)."""
    return torch.baddbmm(biases[:, None], text, weights.mT)


def fingerprint(learned: LearnedPrompt) -> str:
    """Return a digest of kind, tensor names, shapes and values, as 32 hexadecimal digits.

    It includes the class names of a shared CoOp context, on which ``dac-base`` depends.
    """
    return learned.digest


ContextSource: TypeAlias = str | Path | LearnedPrompt
"""File, ``coop=FILE``, or the content of a file."""


def read_context(source: ContextSource) -> LearnedPrompt:
    """Return the learned prompt of a source, reading its file if necessary."""
    if not isinstance(source, (str, Path)):
        return source
    path = Path(os.path.expanduser(str(source).removeprefix(ALONE)))
    learned = _read(path, path.stat().st_mtime_ns if path.is_file() else 0)
    return context_alone(learned) if str(source).startswith(ALONE) else learned


Learned = TypeVar("Learned", bound=LearnedPrompt)


def read_learned_as(kind: type[Learned], value: str | Path | Learned) -> Learned:
    """Return a learned prompt of one class, reading its file if necessary.

    Args:
        kind: expected class, such as :class:`CoopContext`.
        value: file, ``coop=FILE`` for the context alone, or an object of the class.

    Raises:
        OtptError: if the value or the content of the file is of another class.
    """
    learned: object = read_context(value) if isinstance(value, (str, Path)) else value
    if isinstance(learned, kind):
        return learned
    if not isinstance(learned, LearnedPrompt):
        raise OtptError(
            f"The learned prompt is of type {type(learned).__name__!r}; expected a file or a {kind.__name__}."
        )
    subject = f"The file {str(value)!r} holds a" if isinstance(value, (str, Path)) else "The object is a"
    remedy = f"; use {ALONE}FILE for its context alone" if kind is CoopContext else ""
    raise OtptError(f"{subject} learned prompt of kind {learned.kind!r}; expected {kind.kind!r}{remedy}.")


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> LearnedPrompt:
    """Read a file, cached because files of MaPLe contain a whole CLIP model."""
    return read_learned(path)


def read_learned(path: str | Path) -> LearnedPrompt:
    """Read a file of learned prompts."""
    tensors, notes = read_tensors(Path(path), what="learned prompt", ignore_objects=True)
    inner = {name.removeprefix("prompt_learner."): tensor.float() for name, tensor in tensors.items()}
    parts = ("proj.", "compound_prompt", "meta_net.", "source.")
    prompts = {name: tensor for name, tensor in inner.items() if name == "ctx" or name.startswith(parts)}
    check_values(path, prompts)
    try:
        return _from_tensors(prompts, notes)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:  # missing tensors or inconsistent shapes
        shown = ", ".join(list(tensors)[:6]) or "no tensor"
        reason = " ".join(str(error).split())
        missing = f"{reason} is missing" if isinstance(error, KeyError) else reason
        raise OtptError(f"The file {str(path)!r} is not a learned prompt: {missing}; it contains {shown}.") from error


def _from_tensors(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> LearnedPrompt:
    """Create a learned prompt, and evaluate it once to validate the shapes."""
    images = _names(notes.get("images", "[]"))
    if any(name.startswith(("compound_prompt", "proj.")) for name in tensors):
        maple = _maple(tensors, images)
        maple.visual()
        return maple
    if any(name.startswith("meta_net.") for name in tensors):
        cocoop = CocoopContext(tensors["ctx"], *(tensors[name] for name in _NET), images=images)
        cocoop.starts(torch.zeros(1, cocoop.weight1.shape[-1]))
        return cocoop
    class_names = _names(notes["class_names"]) if "class_names" in notes else None
    coop = CoopContext(tensors["ctx"], class_names, images=images)
    coop.prompt()
    return coop


def _names(text: str) -> tuple[str, ...]:
    """Parse a JSON list of names."""
    names = parse_json(text)
    if not isinstance(names, list):
        raise ValueError(f"a note is {text[:50]!r}, not a list")
    return tuple(str(name) for name in names)


def _maple(tensors: Mapping[str, Tensor], images: tuple[str, ...]) -> MaplePrompts:
    deep = range(sum(name.startswith("compound_prompts_text.") for name in tensors))
    texts = ["ctx", *(f"compound_prompts_text.{i}" for i in deep)]
    couplings = ["proj", *(f"compound_prompt_projections.{i}" for i in deep)]
    has_statistics = "source.means" in tensors
    return MaplePrompts(
        torch.stack([tensors[name] for name in texts]),
        torch.stack([tensors[f"{name}.weight"] for name in couplings]),
        torch.stack([tensors[f"{name}.bias"] for name in couplings]),
        images=images,
        means=tensors["source.means"] if has_statistics else None,
        variances=tensors["source.variances"] if has_statistics else None,
    )


def write_learned(path: str | Path, learned: LearnedPrompt) -> bytes:
    """Serialise a learned prompt as safetensors if ``path`` has that suffix, else as a Dassl checkpoint."""
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
            raise OtptError(f"The file {str(path)!r} is corrupt: {name} is empty or has non-finite values.")
