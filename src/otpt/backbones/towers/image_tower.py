"""The image side of a backbone, tuned without changing what it computes.

- inference mode: no autograd bookkeeping;
- batch-norms and activations joined to convolutions, which are in channels_last order (``folding``, ``fusing``,
  ``tuned_resnet``);
- fused attention, packed weights, a last block for the class token only (``tuned_vit``, ``kernels``);
- chunks of a fixed size, small enough for the processor's caches (on a GPU large enough to fill it);
- ``torch.compile`` if asked for (``compiling``), with ordinary operators in place of packed ones.

The tuned tower is compared with the original when it is made, and dropped if it does not agree.

**A view's feature does not depend on what else is in the batch**, to the last bit. A matrix product may sum
in another order when it has another number of rows, so views always go through in chunks of exactly the
same size; the last one is filled up by repeating its first view. Within a chunk neither position nor
neighbours matter.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.imported import is_instance
from otpt.backbones.tuned.compiling import TOLERANCE, CompiledTower, check_agreement
from otpt.backbones.tuned.folding import fold_batch_norms
from otpt.backbones.tuned.fusing import fuse_activations
from otpt.backbones.tuned.tuned_resnet import tune_resnet
from otpt.backbones.tuned.tuned_vit import tune_vit
from otpt.threads import in_threads
from otpt.transfers import to_device

#: Views in a chunk, by kind of device; measured in ``benchmarks/encoding.py``.
_CHUNK = {"cpu": 8, "cuda": 64, "mps": 32}
_CHUNK_CONVOLUTIONAL = {"cpu": 8, "cuda": 128, "mps": 32}
#: Images of at most this side go through in chunks of twice the size, which still fit the caches: 64 views of
#: ``pocket`` (64 px) took 0.136 instead of 0.178 processor seconds.
_SMALL_SIDE = 112


class ImageTower:
    """Pixels (N, 3, S, S) → unit-norm features (N, D), in inference mode."""

    def __init__(
        self,
        visual: nn.Module,
        image_size: int,
        *,
        autocast: torch.dtype | None = None,
        chunk: int | None = None,
        compile: bool = False,
    ) -> None:
        parameter = next(visual.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.image_size = image_size
        self.convolutional = is_convolutional(visual)
        sizes = _CHUNK_CONVOLUTIONAL if self.convolutional else _CHUNK
        self.chunk = chunk or sizes.get(self.device.type, 16) * (2 if image_size <= _SMALL_SIDE else 1)
        self._autocast = autocast
        self._visual = tune(visual, image_size, self.chunk, pack=autocast is None and not compile)
        self._compiled: CompiledTower | None = None
        if compile:
            self._compile()

    def __call__(self, pixels: Tensor, *, unit: bool = True) -> Tensor:
        """The features; with any norm, as the tower gives them, if not ``unit``."""
        side = self.image_size
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != (3, side, side):
            raise ValueError(f"expected pixels of shape (N, 3, {side}, {side}), but got {tuple(pixels.shape)}")
        chunks = pixels.split(self.chunk)
        encode = partial(self._encode, unit=unit)
        if self.device.type == "cpu":
            features = in_threads(encode, chunks)
        elif self._compiled is None:
            features = list(map(encode, chunks))
        else:
            features = self._compiled.in_its_thread(partial(list, map(encode, chunks)))
        return torch.cat(features)  # outside of inference mode: an ordinary tensor, which later gradients may pass by

    def _compile(self) -> None:  # now, so that a failure shows before the first image
        views = check_pixels(self.image_size, self.device, self.dtype).expand(self.chunk, -1, -1, -1)
        plain = self(views, unit=False)
        order = torch.channels_last if self.convolutional else torch.contiguous_format
        self._compiled = CompiledTower(self._visual, self.device, order=order)
        check_agreement(partial(self, unit=False), plain, views, low=self._autocast is not None)

    @torch.inference_mode()
    def _encode(self, pixels: Tensor, unit: bool) -> Tensor:
        count = len(pixels)
        pixels = to_device(pixels, self.device, self.dtype)
        if count < self.chunk:
            pixels = torch.cat([pixels, pixels[:1].expand(self.chunk - count, -1, -1, -1)])
        if self.convolutional:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        low = self._autocast
        mixed: Any = nullcontext() if low is None else torch.autocast(self.device.type, dtype=low)
        with mixed:
            features = first((self._compiled or self._visual)(pixels))
        features = features[:count].to(self.dtype)
        return F.normalize(features, dim=-1) if unit else features


def tune(visual: nn.Module, image_size: int, chunk: int, *, pack: bool) -> nn.Module:
    """The tower as it will run; ``visual`` itself where nothing can be tuned or the result would differ."""
    parameter = next(visual.parameters())
    pixels = check_pixels(image_size, parameter.device, parameter.dtype)
    with torch.no_grad():
        try:
            tuned = _tuned(visual, pixels, chunk, pack=pack)
            if tuned is visual:
                return visual
            # a whole chunk, as it will run: packed weights are made for that size
            whole = pixels.expand(chunk, -1, -1, -1).contiguous()
            found = first(tuned(whole))
        except (RuntimeError, AttributeError, TypeError):
            return visual  # the private kernels of another PyTorch
        expected = first(visual(pixels))
    agrees = bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
    return tuned if agrees else visual


def check_pixels(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(1, 3, S, S), by which towers are compared."""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def _tuned(visual: nn.Module, pixels: Tensor, chunk: int, *, pack: bool) -> nn.Module:
    if is_instance(visual, "open_clip.transformer", "VisionTransformer"):
        return tune_vit(visual, chunk, pack=pack)
    tuned = fold_batch_norms(visual, pixels)
    if is_convolutional(visual):
        tuned = tuned.to(memory_format=torch.channels_last)
    if is_instance(tuned, "open_clip.modified_resnet", "ModifiedResNet") and tuned is not visual:
        return tune_resnet(tuned, chunk, pack=pack)
    if pack and is_convolutional(visual) and tuned is not visual:
        return fuse_activations(tuned, pixels, chunk)
    return tuned


def first(output: Any) -> Tensor:
    """The pooled feature, of towers that also give tokens (CoCa)."""
    feature: Tensor = output[0] if isinstance(output, tuple) else output
    return feature


def is_convolutional(visual: nn.Module) -> bool:
    """More than the one convolution that cuts an image into patches."""
    return sum(isinstance(module, nn.Conv2d) for module in visual.modules()) > 4
