"""Backbones of modules with open_clip's interface, and of precomputed features."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from otpt.backbones.devices import check_precision, pick_device
from otpt.backbones.image_tower import ImageTower
from otpt.backbones.modules import ClipModule, Tokenizer
from otpt.backbones.protocols import Backbone
from otpt.backbones.text_tower import ModelTextTower
from otpt.errors import OtptError
from otpt.views import Preprocessing


class ClipBackbone(Backbone):
    """Backbone of a module with open_clip's interface.

    Args:
        model: module with ``visual`` (pixels → features), ``encode_text(ids)``, ``logit_scale``, optionally
            ``logit_bias``, and a token embedding; see :class:`~otpt.backbones.text_tower.ModelTextTower`.
        tokenizer: function that maps texts to token ids.
        preprocessing: preprocessing of the image tower.
        name: name of the model given by the user.
        architecture: name of the architecture.
        device: device to which the model is moved.
        precision: precision of the model, a key of :data:`otpt.backbones.devices.PRECISIONS`.
        compiled: whether to compile the image tower.
    """

    text: ModelTextTower
    visual: nn.Module

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        name: str,
        architecture: str,
        device: torch.device,
        precision: str,
        compiled: bool = False,
    ) -> None:
        if not isinstance(model, ClipModule):
            raise TypeError(f"{type(model).__name__} lacks open_clip's visual, encode_text or logit_scale")
        self.dtype, autocast, text_autocast = check_precision(precision, device)
        self.name = name
        self.architecture = architecture
        self.fingerprint = fingerprint(model)
        self.family = image_family(model.visual)
        self.device = device
        self.precision = precision
        self.compiled = compiled
        self.preprocessing = preprocessing
        self.logit_scale = float(model.logit_scale.detach().double().exp().mean())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach().double().mean())
        self._model = model.to(device=device, dtype=self.dtype).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self.text = ModelTextTower(self._model, tokenizer)
        self.text.autocast = text_autocast
        self.embed_dim = self.text.output_dim
        self.visual = self._model.visual
        self._image = ImageTower(self.visual, preprocessing.size, autocast=autocast, compile=compiled)
        self.chunk = self._image.chunk

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        if len(pixels) == 0:
            return torch.empty(0, self.embed_dim, dtype=self.dtype, device=self.device)
        return self._image(pixels, chunk=chunk, unit=unit)

    def to(self, device: str | torch.device) -> ClipBackbone:
        place = pick_device(device)
        if place == self.device:
            return self
        return self._like(place)(deepcopy(self._model), self._tokenizer, self.preprocessing)

    def __reduce__(self) -> tuple[partial[ClipBackbone], tuple[nn.Module, Tokenizer, Preprocessing]]:
        """Pickle the model and its options; the tuned tower is rebuilt."""
        return self._like(self.device), (self._model, self._tokenizer, self.preprocessing)

    def _like(self, device: torch.device) -> partial[ClipBackbone]:
        return partial(
            ClipBackbone,
            name=self.name,
            architecture=self.architecture,
            device=device,
            precision=self.precision,
            compiled=self.compiled,
        )


def image_family(visual: nn.Module) -> str:
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

    text = None

    def __init__(self, width: int, logit_scale: float = 100.0, name: str = "") -> None:
        self.name = self.architecture = name or "features"
        self.fingerprint = hashlib.sha256(f"features {name} {width} {logit_scale}".encode()).hexdigest()[:32]
        self.preprocessing = Preprocessing(size=224)
        self.embed_dim = width
        self.logit_scale = logit_scale
        if "vit" in name.lower():
            self.family = "vit"
        elif name.lower().startswith("rn"):
            self.family = "resnet"

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        raise OtptError("An image tower is required, but this backbone has only features; load the model.")


_FACTS = ("num_heads", "eps", "stride", "padding", "approximate", "pool_type", "text_pool_type", "final_ln_after_pool")
"""Attributes that affect the output of a module but not the shapes of its weights."""


def fingerprint(model: nn.Module) -> str:
    """Return 24 hexadecimal digits of the SHA-256 of the architecture (canonical JSON) and the state dict.

    The architecture (heads, eps, strides, pooling, activations, causal masks) is read from the modules, not from a
    configuration file, so omitted defaults make no difference. Tensors are hashed by name, shape and values in float32
    (integers in int64), so the fingerprint does not depend on file format or precision.
    """
    facts: dict[str, dict[str, object]] = {}
    for name, module in model.named_modules():
        values = {key: getattr(module, key, None) for key in _FACTS}
        module_facts: dict[str, object] = {}
        module_facts |= {key: value for key, value in values.items() if isinstance(value, (int, float, str, tuple))}
        if getattr(module, "attn_mask", None) is not None:
            module_facts["masked"] = True
        if not list(module.children()) and not list(module.parameters(recurse=False)):
            module_facts["kind"] = type(module).__name__
        if module_facts:
            facts[name] = module_facts
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        kind = torch.float32 if tensor.is_floating_point() else torch.int64
        digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.detach().to("cpu", kind).contiguous().reshape(-1).numpy().data)
    return digest.hexdigest()[:24]
