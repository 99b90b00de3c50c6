"""Image tower of a backbone: pixels to unit features, in chunks.

Views are encoded by the tuned tower (:mod:`otpt.backbones.fast`) in inference mode, in chunks that fit the processor's
caches or, on a GPU, fill it.

- **Fixed chunks** (``chunk=`` is set, as in runs): every chunk has exactly that size, the last one padded by repeating
  its first view, and is computed by one thread. The features of a view are then bitwise equal in any batch: the
  summation order of a matrix product depends on the number of rows, but not on a row's position or the other rows.
- **Free chunks** (the default): no padding. Views that fit into one chunk are computed by all torch threads, which is
  fastest for a single image; more views use one thread per chunk. Features equal those of fixed chunks up to rounding,
  and bitwise if there are several full chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.fast import check_pixels, is_convolutional, pooled, tune
from otpt.errors import OtptError
from otpt.threads import available_threads, in_threads
from otpt.transfers import to_device

_CHUNK = {"cpu": 8, "cuda": 64, "mps": 32}
"""Views per chunk by type of device, tuned with ``benchmarks/encoding.py``."""
_CHUNK_CONVOLUTIONAL = {"cpu": 8, "cuda": 128, "mps": 32}
_SMALL_SIDE = 112
"""Chunks are doubled for images up to this side and still fit the caches: encoding 64 views of ``pocket`` (64 px) took
0.136 instead of 0.178 processor seconds."""


class ImageTower:
    """Encoder of pixels (N, 3, S, S) to unit features (N, D).

    Attributes:
        chunk: number of views in a full chunk.
    """

    def __init__(
        self, visual: nn.Module, image_size: int, *, autocast: torch.dtype | None = None, compile: bool = False
    ) -> None:
        parameter = next(visual.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.image_size = image_size
        self.convolutional = is_convolutional(visual)
        sizes = _CHUNK_CONVOLUTIONAL if self.convolutional else _CHUNK
        self.chunk = sizes.get(self.device.type, 16) * (2 if image_size <= _SMALL_SIDE else 1)
        self._autocast, self._compiled = autocast, compile
        pack = autocast is None and not compile
        self._visual: Callable[[Tensor], Tensor | tuple[Tensor, ...]] = tune(visual, image_size, self.chunk, pack=pack)
        if compile:
            self._compile()

    def __call__(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        """Return features (N, D), normalised if ``unit``; for ``chunk`` see the module docstring."""
        side = self.image_size
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != (3, side, side):
            raise ValueError(f"expected pixels of shape (N, 3, {side}, {side}), but got {tuple(pixels.shape)}")
        if self._compiled:
            chunk = self.chunk
        encode = partial(self._encode, unit=unit, fill=chunk or 0)
        chunks = pixels.split(chunk or self.chunk)
        if self.device.type != "cpu":
            features = [encode(views) for views in chunks]
        elif chunk is None and len(chunks) == 1:
            return self._with_all_threads(pixels, unit)
        else:
            features = in_threads(encode, chunks)
        return torch.cat(features)  # outside inference mode, so that autograd can use the result

    def _with_all_threads(self, pixels: Tensor, unit: bool) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(available_threads())
        try:
            return self._encode(pixels, unit, 0).clone()
        finally:
            torch.set_num_threads(before)

    @torch.inference_mode()
    def _encode(self, pixels: Tensor, unit: bool, fill: int) -> Tensor:
        count = len(pixels)
        pixels = to_device(pixels, self.device, self.dtype)
        if count < fill:
            pixels = torch.cat([pixels, pixels[:1].expand(fill - count, -1, -1, -1)])
        if self.convolutional:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        low = self._autocast
        mixed: AbstractContextManager[object] = nullcontext()
        if low is not None:
            mixed = torch.autocast(self.device.type, dtype=low)
        with mixed:
            features = pooled(self._visual(pixels))
        features = features[:count].to(self.dtype)
        return F.normalize(features, dim=-1) if unit else features

    def _compile(self) -> None:
        """Compile the tower for full chunks and compare it with the original, to fail early."""
        views = check_pixels(self.image_size, self.device, self.dtype).expand(self.chunk, -1, -1, -1)
        plain = self(views)
        options: dict[str, str | int | bool | Callable[..., object]] | None = None
        if self.device.type == "cpu":
            options = {"cpp.threads": 1}
        self._visual = torch.compile(self._visual, fullgraph=True, dynamic=False, options=options)
        try:
            compiled = self(views)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")
            raise OtptError(
                f"Cannot compile the image tower on {self.device.type!r}: {reason}. torch.compile needs a C++ "
                "compiler, and Triton on 'cuda'; install them, or omit compile."
            ) from error
        difference = float((compiled - plain).abs().max())
        if not difference <= (0.05 if self._autocast else 1e-3):
            raise OtptError(f"The compiled image tower differs from the original by {difference:.1e}; omit compile.")
