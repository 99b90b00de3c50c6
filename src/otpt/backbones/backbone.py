"""Interface of backbones, and its implementation for modules with open_clip's interface."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.image_tower import ImageTower
from otpt.backbones.text_tower import ModelTextTower, TextTower
from otpt.errors import OtptError, unknown
from otpt.threads import available_threads
from otpt.views import Preprocessing


class Backbone(ABC):
    """Base class of models; subclasses set the attributes without a default.

    Attributes:
        name: name given by the user.
        fingerprint: hexadecimal digest of architecture and weights, part of cache keys and results.
        preprocessing: preprocessing of the image tower.
        embed_dim: feature dimension D.
        text: text tower.
        logit_scale, logit_bias: constants in logits = logit_scale · cosine + logit_bias.
        architecture: name of the architecture, such as "ViT-B-16".
        family: kind of image tower: "vit", "resnet" or "other".
        device: device of the model.
        dtype: dtype of the features.
        precision: "float32", "bf16" or "fp16" (autocast of the image tower), "bf16-both" or "fp16-both" (autocast of
            both towers), or "float64".
        compiled: whether the image tower is compiled, which changes its rounding.
        chunk: number of views in a full chunk of the image tower.
        visual: module of the image tower, for methods that need its layers or its gradient, or None.

    Example:
        >>> import otpt
        >>> backbone = otpt.load_backbone("pocket", device="cpu")
        >>> isinstance(backbone, Backbone), backbone.family
        (True, 'vit')
    """

    name: str
    fingerprint: str
    preprocessing: Preprocessing
    embed_dim: int
    text: TextTower
    logit_scale: float = 100.0
    logit_bias: float = 0.0
    architecture: str = "custom"
    family: str = "other"
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    precision: str = "float32"
    compiled: bool = False
    chunk: int = 8
    visual: nn.Module | None = None

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


class ClipBackbone(Backbone):
    """Backbone of a module with open_clip's interface.

    Args:
        model: module with ``visual`` (pixels → features), ``encode_text(ids)``, ``logit_scale``, optionally
            ``logit_bias``, and a token embedding; see :class:`~otpt.backbones.text_tower.ModelTextTower`.
        tokenizer: function that maps texts to token ids.
    """

    visual: nn.Module

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        preprocessing: Preprocessing,
        *,
        name: str,
        architecture: str,
        device: torch.device,
        precision: str,
        compiled: bool = False,
    ) -> None:
        self.dtype, autocast, text_autocast = check_precision(precision, device)
        self.name, self.architecture = name, architecture
        self.fingerprint = fingerprint(model)
        self.family = image_family(model.visual)
        self.device, self.precision, self.compiled = device, precision, compiled
        self.preprocessing = preprocessing
        self.logit_scale = float(model.logit_scale.detach().double().exp().mean())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach().double().mean())
        self._model = model.to(device=device, dtype=self.dtype).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        text = ModelTextTower(self._model, tokenizer)
        text.autocast = text_autocast
        self.text, self.embed_dim = text, text.output_dim
        self.visual = self._model.visual
        self._image = ImageTower(self.visual, preprocessing.size, autocast=autocast, compile=compiled)
        self.chunk = self._image.chunk

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        if len(pixels) == 0:
            return torch.empty(0, self.embed_dim, dtype=self.dtype, device=self.device)
        return self._image(pixels, chunk=chunk, unit=unit)

    def to(self, device: str | torch.device) -> Backbone:
        place = pick_device(device)
        if place == self.device:
            return self
        return self._like(place)(deepcopy(self._model), self._tokenizer, self.preprocessing)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle the model and its options; the tuned tower is rebuilt."""
        return self._like(self.device), (self._model, self._tokenizer, self.preprocessing)

    def _like(self, device: torch.device) -> partial[ClipBackbone]:
        options = {name: getattr(self, name) for name in ("name", "architecture", "precision", "compiled")}
        return partial(ClipBackbone, device=device, **options)


def image_family(visual: Any) -> str:
    """Return the kind of an image tower ("vit", "resnet" or "other"), from its ``family`` or its layers."""
    tower = getattr(visual, "trunk", visual)
    if hasattr(visual, "family"):
        return str(visual.family)
    if hasattr(tower, "layer4"):
        return "resnet"
    blocks = hasattr(tower, "patch_embed") and hasattr(tower, "blocks")
    return "vit" if blocks or hasattr(getattr(tower, "transformer", None), "resblocks") else "other"


class FeatureBackbone(Backbone):
    """Backbone for precomputed features; it cannot encode images or texts.

    Args:
        width: feature dimension D.
        logit_scale: logit scale of the model.
        name: name of the model that computed the features, if known.
    """

    def __init__(self, width: int, logit_scale: float = 100.0, name: str = "") -> None:
        self.name = self.architecture = name or "features"
        self.fingerprint = hashlib.sha256(f"features {name} {width} {logit_scale}".encode()).hexdigest()[:32]
        self.preprocessing = Preprocessing(size=224)
        self.embed_dim, self.logit_scale = width, logit_scale
        model = name.lower()
        self.family = "vit" if "vit" in model else "resnet" if model.startswith("rn") else "other"

    def __getattr__(self, name: str) -> Any:
        if name == "text":
            raise OtptError("A text tower is required, but this backbone has only features; load the model.")
        raise AttributeError(name)

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        raise OtptError("An image tower is required, but this backbone has only features; load the model.")


PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None, torch.dtype | None]] = {
    "float32": (torch.float32, None, None),
    "bf16": (torch.float32, torch.bfloat16, None),
    "fp16": (torch.float32, torch.float16, None),
    "bf16-both": (torch.float32, torch.bfloat16, torch.bfloat16),
    "fp16-both": (torch.float32, torch.float16, torch.float16),
    "float64": (torch.float64, None, None),
}
"""Dtypes of the weights, of autocast in the image tower and of autocast in the text tower, by precision."""


def available_devices() -> list[str]:
    """Return the names of the available devices: "cpu", "cuda", "cuda:1" …, "mps"."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def pick_device(device: str | torch.device) -> torch.device:
    """Return the device of this name; "auto" prefers CUDA, then MPS, then the CPU."""
    available, name = available_devices(), str(device)
    if name == "auto":
        return torch.device("cuda" if "cuda" in available else "mps" if "mps" in available else "cpu")
    if name not in available:
        raise OtptError(f"Device {name!r} is not available on this machine; available: auto, {', '.join(available)}.")
    return torch.device(name)


def check_precision(name: str, device: torch.device) -> tuple[torch.dtype, torch.dtype | None, torch.dtype | None]:
    """Return the dtypes of a precision (see :data:`PRECISIONS`); raise if the device does not support it."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name == "float64" and device.type == "mps":
        raise OtptError("Precision 'float64' is not supported on MPS; use the device 'cpu'.")
    return PRECISIONS[name]


_FACTS = ("num_heads", "eps", "stride", "padding", "approximate", "pool_type", "text_pool_type", "final_ln_after_pool")
"""Attributes that affect the output of a module but not the shapes of its weights."""


def fingerprint(model: nn.Module) -> str:
    """Return 24 hexadecimal digits of the SHA-256 of the architecture (canonical JSON) and the state dict.

    The architecture (heads, eps, strides, pooling, activations, causal masks) is read from the modules, not from a
    configuration file, so omitted defaults make no difference. Tensors are hashed by name, shape and values in float32
    (integers in int64), so the fingerprint does not depend on file format or precision.
    """
    facts: dict[str, Any] = {}
    for name, module in model.named_modules():
        values = ((key, getattr(module, key, None)) for key in _FACTS)
        own: dict[str, Any] = {key: value for key, value in values if isinstance(value, (int, float, str, tuple))}
        if getattr(module, "attn_mask", None) is not None:
            own["masked"] = True
        if not list(module.children()) and not list(module.parameters(recurse=False)):
            own["kind"] = type(module).__name__
        if own:
            facts[name] = own
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        kind = torch.float32 if tensor.is_floating_point() else torch.int64
        digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.detach().to("cpu", kind).contiguous().reshape(-1).numpy().data)
    return digest.hexdigest()[:24]
