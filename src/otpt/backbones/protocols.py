"""Protocols of backbones, and defaults for objects that have only a part of them.

A backbone is an :class:`ImageEncoder` with a :class:`TextEncoder`, or with ``text = None`` if it has none. No base
class is required. An object needs this core:

    backbone:  name, fingerprint, preprocessing, embed_dim, text, encode_pixels
    text:      width, context_length, tokenize, embed, encode_embeddings

:func:`as_backbone` adds the defaults of all other members. Classes may also inherit from the protocols, which contain
these defaults.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from otpt.backbones.causal import CausalTower
from otpt.backbones.devices import pick_device
from otpt.errors import OtptError
from otpt.threads import available_threads
from otpt.views import Preprocessing

_CORE = ("name", "fingerprint", "preprocessing", "embed_dim", "text", "encode_pixels")
_TEXT_CORE = ("width", "context_length", "tokenize", "embed", "encode_embeddings")


@runtime_checkable
class ImageEncoder(Protocol):
    """Encoder of images.

    Attributes:
        name: name given by the user.
        fingerprint: hexadecimal digest of architecture and weights, part of cache keys and results.
        preprocessing: preprocessing of the images.
        embed_dim: feature dimension D.
        device: device of the features.
        dtype: dtype of the features.
        precision: "float32", "bf16" or "fp16" (autocast of the image tower), "bf16-both" or "fp16-both" (autocast of
            both towers), or "float64".
        compiled: whether the image tower is compiled, which changes its rounding.
        chunk: number of views in a full chunk of the image tower.
    """

    name: str
    fingerprint: str
    preprocessing: Preprocessing
    embed_dim: int
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    precision: str = "float32"
    compiled: bool = False
    chunk: int = 8

    @abstractmethod
    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        """Return the features (N, D) of normalised pixels (N, 3, S, S), on ``self.device``.

        Args:
            pixels: (N, 3, S, S).
            chunk: encode chunks of exactly this many views, which makes the features of a view bitwise independent of
                its batch; pass ``backbone.chunk``. None chooses the size, which is faster for few views.
            unit: normalise the features.
        """

    @property
    def views_at_once(self) -> int:
        """Preferred batch size of the image tower, in views."""
        return max(64, self.chunk * available_threads()) if self.device.type == "cpu" else 512


@runtime_checkable
class TextEncoder(Protocol):
    """Encoder of texts.

    Attributes:
        width: width W of token embeddings.
        context_length: number L of tokens of a padded text.
        device: device of the embeddings.
        causal: canonical form of a CLIP text tower, for the fast encoder, or None.
        ignores_padding: whether texts can be encoded without their common padding, with the same features.
        autocast: autocast dtype for encoding prompts, or None.
    """

    width: int
    context_length: int
    device: torch.device = torch.device("cpu")
    causal: CausalTower | None = None
    ignores_padding: bool = False
    autocast: torch.dtype | None = None

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return padded token ids (N, L) int64 on the tower's device; raise ``OtptError`` for a too long text."""

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings (…, W) of ids (…), without positional embeddings."""

    @abstractmethod
    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Return unnormalised text features (N, D) of token embeddings (N, L, W).

        The ids (N, L) determine only the end position and the padding mask. Thread-safe, and differentiable with
        respect to ``embeddings``.
        """

    def lengths(self, ids: Tensor) -> Tensor:
        """Return the number of tokens per text, with special tokens and without padding: (N, L) → (N,)."""
        if self.causal is not None:
            return self.causal.ends(ids) + 1
        padding = self.tokenize([""])[0, -1].to(ids.device)
        return ids.shape[1] - (ids == padding).flip(1).cumprod(1).sum(1)

    @cached_property
    def start_length(self) -> int:
        """Number of special tokens before the text: 1 for CLIP and BERT, 0 for SigLIP."""
        empty, x = self.tokenize(["", "x"]).cpu()
        return int((empty == x).long().cumprod(0).sum())


TextTower = TextEncoder
"""Name of :class:`TextEncoder` as a base class."""


@runtime_checkable
class Backbone(ImageEncoder, Protocol):
    """Model of images and texts.

    Attributes:
        text: text encoder, or None for a model of images only and for precomputed features.
        logit_scale, logit_bias: constants in logits = logit_scale · cosine + logit_bias.
        architecture: name of the architecture, such as "ViT-B-16".
        family: kind of image tower: "vit", "resnet" or "other".
        visual: module of the image tower, for methods that need its layers or its gradient, or None.

    Example:
        >>> import otpt
        >>> backbone = otpt.load_backbone("pocket", device="cpu")
        >>> isinstance(backbone, Backbone), backbone.family
        (True, 'vit')
    """

    text: TextEncoder | None
    logit_scale: float = 100.0
    logit_bias: float = 0.0
    architecture: str = "custom"
    family: str = "other"
    visual: nn.Module | None = None

    def to(self, device: str | torch.device) -> Backbone:
        """Return a copy of the model on another device, or the model itself if it is on that device."""
        if pick_device(device) != self.device:
            raise OtptError(f"The backbone {self.name!r} cannot be moved from '{self.device}' to '{device}'.")
        return self

    def __repr__(self) -> str:
        return (
            f"Backbone({self.name!r}, architecture={self.architecture!r}, family={self.family!r}, "
            f"device='{self.device}', precision={self.precision!r}, "
            f"{'compiled=True, ' if self.compiled else ''}fingerprint={self.fingerprint!r})"
        )


# ---- objects with a part of a protocol


def is_backbone(model: object) -> bool:
    """Return whether an object has the core of a backbone (see the module docstring)."""
    return not _missing(model, _CORE)


def as_backbone(model: object) -> Backbone:
    """Return an object as a backbone with all members of the protocol.

    Args:
        model: object with the core of a backbone (see the module docstring). It is returned itself if it is complete;
            otherwise a wrapper, which has the attributes of the object and the defaults of the others.

    Raises:
        OtptError: if a member of the core is missing.
    """
    if (
        isinstance(model, Backbone)
        and (model.text is None or isinstance(model.text, TextEncoder))
        and isinstance(model.device, torch.device)
    ):
        return model
    _check_core("backbone", model, _CORE)
    return _CompletedBackbone(cast(Backbone, model))


def has_text_encoder(backbone: object) -> bool:
    """Return whether a backbone encodes texts; False for one with only features or only an image tower."""
    return getattr(backbone, "text", None) is not None


def text_encoder(backbone: Backbone) -> TextEncoder:
    """Return the text encoder of a backbone; raise ``OtptError`` if it has none."""
    if backbone.text is None:
        raise OtptError(
            f"A text tower is required, but the backbone {backbone.name!r} has none; load a model with a text tower, "
            "or pass text features."
        )
    return _as_text_encoder(backbone.text)


def _as_text_encoder(text: object) -> TextEncoder:
    if isinstance(text, TextEncoder):
        return text
    _check_core("text encoder", text, _TEXT_CORE)
    return _CompletedText(cast(TextEncoder, text))


def _missing(model: object, core: Sequence[str]) -> list[str]:
    return [name for name in core if not hasattr(model, name)]


def _check_core(kind: str, model: object, core: Sequence[str]) -> None:
    if missing := _missing(model, core):
        raise OtptError(
            f"The {kind} is a {type(model).__name__} without {', '.join(missing)}; expected an object with "
            f"{', '.join(core)}."
        )


class _Completed:
    """Mixin of wrappers: the attributes of the wrapped object, and the inherited defaults of those that it lacks."""

    _wrapped: object

    def __getattribute__(self, name: str) -> object:
        if name.startswith("_") or name in vars(type(self)):
            return super().__getattribute__(name)
        try:
            return getattr(self._wrapped, name)
        except AttributeError:
            return super().__getattribute__(name)


class _CompletedText(_Completed, TextEncoder):
    """Text encoder with the defaults of :class:`TextEncoder`."""

    width: int
    context_length: int
    _wrapped: TextEncoder

    def __init__(self, wrapped: TextEncoder) -> None:
        self._wrapped = wrapped

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return self._wrapped.tokenize(texts)

    def embed(self, ids: Tensor) -> Tensor:
        return self._wrapped.embed(ids)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        return self._wrapped.encode_embeddings(ids, embeddings)


class _CompletedBackbone(_Completed, Backbone):
    """Backbone with the defaults of :class:`Backbone`."""

    name: str
    fingerprint: str
    preprocessing: Preprocessing
    embed_dim: int
    _wrapped: Backbone

    def __init__(self, wrapped: Backbone) -> None:
        self._wrapped = wrapped
        self._text = None if wrapped.text is None else _as_text_encoder(wrapped.text)
        self._device = torch.device(getattr(wrapped, "device", "cpu"))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device of the model, also if the object has it as text."""
        return self._device

    @property
    def text(self) -> TextEncoder | None:  # type: ignore[override]
        return self._text

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        return self._wrapped.encode_pixels(pixels, chunk=chunk, unit=unit)

    def to(self, device: str | torch.device) -> Backbone:
        if hasattr(self._wrapped, "to"):
            return as_backbone(self._wrapped.to(device))
        return super().to(device)
