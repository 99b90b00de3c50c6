"""A loaded model as the rest of the package sees it."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.devices import check_precision, pick_device, text_autocast
from otpt.backbones.fingerprint import fingerprint
from otpt.backbones.preprocessing import Preprocessing
from otpt.backbones.tokens import Tokenizer
from otpt.backbones.towers.image_tower import ImageTower
from otpt.backbones.towers.text_tower import TextTower
from otpt.threads import available_threads


class Backbone:
    """An image tower, a text tower, and the numbers that belong to them.

    Attributes:
        name: as the user wrote it.
        architecture: such as "ViT-B-16".
        fingerprint: hexadecimal, architecture + weights.
        family: "vit", "resnet" or "other": the kind of image tower.
        device: where the model is.
        precision: "float32", "bf16", "fp16" (autocast around the image tower), "bf16-both", "fp16-both" (around
            both towers) or "float64".
        compiled: whether the image tower was compiled, which changes its rounding.
        dtype: dtype of the features handed out: float32, or float64 with precision float64.
        preprocessing: what the image tower expects.
        embed_dim: D, the width of the features.
        logit_scale: exp of the stored parameter, about 100.
        logit_bias: 0 except for SigLIP.
        text: the text tower.
        visual: the image tower's module, for work that needs its parts or its gradient.
    """

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
        weights, autocast = check_precision(precision, device)
        self.name = name
        self.architecture = architecture
        self.fingerprint = fingerprint(model)
        self.family = image_family(model.visual)
        self.device = device
        self.precision = precision
        self.compiled = compiled
        self.dtype = weights
        self.preprocessing = preprocessing
        self.logit_scale = float(model.logit_scale.detach().double().exp().mean())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach().double().mean())
        model = model.to(device=device, dtype=weights).eval().requires_grad_(False)
        self._model, self._tokenizer = model, tokenizer
        # L as the text tower itself counts it: CoCa's outer model counts its caption decoder
        self.text = TextTower(model, Tokenizer(tokenizer, int(getattr(model, "text", model).context_length)))
        self.text.autocast = text_autocast(precision)
        self.visual: nn.Module = model.visual
        self._image = ImageTower(model.visual, preprocessing.size, autocast=autocast, compile=compiled)
        self.embed_dim = self.text.output_dim

    def encode_pixels(self, pixels: Tensor, *, unit: bool = True) -> Tensor:
        """Features (N, D) of normalised pixels (N, 3, S, S), on ``self.device``; of norm one if ``unit``.

        The feature of a view is the same, bit for bit, in any batch.
        """
        if len(pixels) == 0:
            return torch.empty(0, self.embed_dim, dtype=self.dtype, device=self.device)
        return self._image(pixels, unit=unit)

    @property
    def views_at_once(self) -> int:
        """How many views fill the image tower: 64 or more on a CPU, one chunk per thread at least; 512 on a GPU."""
        return max(64, self._image.chunk * available_threads()) if self.device.type == "cpu" else 512

    def to(self, device: str | torch.device) -> Backbone:
        """The same model on another device: a copy, or this one if it is there already."""
        place = pick_device(device)
        if place == self.device:
            return self
        return self._like(place)(deepcopy(self._model), self._tokenizer, self.preprocessing)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """For pickle: the model and what it is built with; what is tuned for this machine is computed anew."""
        return self._like(self.device), (self._model, self._tokenizer, self.preprocessing)

    def _like(self, device: torch.device) -> partial[Backbone]:
        """What builds a backbone with these options on a device."""
        options = {name: getattr(self, name) for name in ("name", "architecture", "precision", "compiled")}
        return partial(Backbone, device=device, **options)

    def __repr__(self) -> str:
        return (
            f"Backbone({self.name!r}, architecture={self.architecture!r}, family={self.family!r}, "
            f"device='{self.device}', precision={self.precision!r}, "
            f"{'compiled=True, ' if self.compiled else ''}fingerprint={self.fingerprint!r})"
        )


def image_family(visual: nn.Module) -> str:
    """ "vit", "resnet" or "other", by the class of the image tower (or of timm's trunk in it)."""
    kind = type(getattr(visual, "trunk", visual)).__name__.lower()
    if "resnet" in kind:
        return "resnet"
    return "vit" if ("vision" in kind and "transformer" in kind) or kind in {"eva", "vit"} else "other"
