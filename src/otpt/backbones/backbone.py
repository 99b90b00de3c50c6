"""The interface of models, and the backbone around a module with open_clip's interface."""

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
    """The interface of a model; subclass it for a model of another kind and set the attributes without a default.

    Attributes:
        name: as the user wrote it.
        fingerprint: hexadecimal, of architecture and weights; caches and results are stored under it.
        preprocessing: what the image tower expects.
        embed_dim: D, the width of the features.
        text: the text tower.
        logit_scale, logit_bias: of the logits, logit_scale · cosine + logit_bias.
        architecture: such as "ViT-B-16".
        family: "vit", "resnet" or "other": the kind of image tower.
        device: where the model is.
        dtype: of the features.
        precision: "float32", "bf16", "fp16" (autocast around the image tower), "bf16-both", "fp16-both" (around both
            towers) or "float64".
        compiled: whether the image tower was compiled, which changes its rounding.
        chunk: number of views of a full chunk of the image tower.
        visual: the image tower's module, for methods that need its parts or its gradient.

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
        """Features (N, D) of normalised pixels (N, 3, S, S), on ``self.device``; of unit norm if ``unit``.

        With ``chunk`` views are encoded in chunks of exactly this size, so that a view has the same bits in any batch;
        pass ``backbone.chunk``. None chooses by the number of views, which is faster for few of them.
        """

    @property
    def views_at_once(self) -> int:
        """Number of views that fill the image tower: at least 64, or one chunk per thread, on a CPU; 512 on a GPU."""
        return max(64, self.chunk * available_threads()) if self.device.type == "cpu" else 512

    def to(self, device: str | torch.device) -> Backbone:
        """The same model on another device: a copy, or this one if it is there already."""
        if pick_device(device) != self.device:
            raise OtptError(f"The backbone {self.name!r} stays on the device '{self.device}'.")
        return self

    def __repr__(self) -> str:
        return (
            f"Backbone({self.name!r}, architecture={self.architecture!r}, family={self.family!r}, "
            f"device='{self.device}', precision={self.precision!r}, "
            f"{'compiled=True, ' if self.compiled else ''}fingerprint={self.fingerprint!r})"
        )


class ClipBackbone(Backbone):
    """A backbone around a module with open_clip's interface.

    Args:
        model: has ``visual`` (pixels → features), ``encode_text(ids)``, ``logit_scale``, perhaps ``logit_bias``, and a
            token embedding that :class:`~otpt.backbones.text_tower.ModelTextTower` finds.
        tokenizer: any function of texts that returns ids.
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
        """Pickle the model and its options; the tuned tower is computed again."""
        return self._like(self.device), (self._model, self._tokenizer, self.preprocessing)

    def _like(self, device: torch.device) -> partial[ClipBackbone]:
        options = {name: getattr(self, name) for name in ("name", "architecture", "precision", "compiled")}
        return partial(ClipBackbone, device=device, **options)


def image_family(visual: Any) -> str:
    """ "vit", "resnet" or "other": the tower's own ``family``, or by its parts or its timm trunk."""
    tower = getattr(visual, "trunk", visual)
    if hasattr(visual, "family"):
        return str(visual.family)
    if hasattr(tower, "layer4"):
        return "resnet"
    blocks = hasattr(tower, "patch_embed") and hasattr(tower, "blocks")
    return "vit" if blocks or hasattr(getattr(tower, "transformer", None), "resblocks") else "other"


class FeatureBackbone(Backbone):
    """Width of the features and logit scale of a model that is not available; it encodes nothing.

    Args:
        name: of the model that computed the features, if known.
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
            raise OtptError("This needs a text tower, but only features were given.")
        raise AttributeError(name)

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        raise OtptError("This needs an image tower, but only features were given.")


PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None, torch.dtype | None]] = {
    "float32": (torch.float32, None, None),
    "bf16": (torch.float32, torch.bfloat16, None),
    "fp16": (torch.float32, torch.float16, None),
    "bf16-both": (torch.float32, torch.bfloat16, torch.bfloat16),
    "fp16-both": (torch.float32, torch.float16, torch.float16),
    "float64": (torch.float64, None, None),
}
"""Dtypes of the weights, of autocast around the image tower and around the text tower."""


def available_devices() -> list[str]:
    """Names of the devices this machine has: "cpu", "cuda", "cuda:1" …, "mps"."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" takes CUDA, then MPS, then the CPU."""
    available, name = available_devices(), str(device)
    if name == "auto":
        return torch.device("cuda" if "cuda" in available else "mps" if "mps" in available else "cpu")
    if name not in available:
        raise OtptError(f"Device {name!r} is not available on this machine; available: auto, {', '.join(available)}.")
    return torch.device(name)


def check_precision(name: str, device: torch.device) -> tuple[torch.dtype, torch.dtype | None, torch.dtype | None]:
    """Dtypes of a precision on a device; see :data:`PRECISIONS`."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name == "float64" and device.type == "mps":
        raise OtptError("Precision 'float64' does not exist on MPS; use the device 'cpu' for it.")
    return PRECISIONS[name]


_FACTS = ("num_heads", "eps", "stride", "padding", "approximate", "pool_type", "text_pool_type", "final_ln_after_pool")
"""Attributes that change what a module computes and that its weights do not show."""


def fingerprint(model: nn.Module) -> str:
    """24 hexadecimal digits of a SHA-256 over the architecture (canonical JSON) and every tensor of the state dict.

    The architecture is what the model computes beyond its weights (heads, eps, strides, pooling, activations, causal
    masks), read from the built model and not from a configuration file, so that a default left out makes no difference.
    A tensor enters with name, shape and its values as float32 (integers as int64), so the same weights give the same
    fingerprint from a float16 archive, a state dict or safetensors, and in any precision.
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
