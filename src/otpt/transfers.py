"""Copies between host and device: few of them, and none that is waited for without need.

A GPU works through a queue; reading a number from it waits until the queue is empty. So what the host needs is copied
together (:func:`to_host`), and what goes to the device is copied without waiting (:func:`to_device`). On the CPU both
do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on a device, in its own type or another; from the host through page-locked memory, without waiting.

    The type is changed on the device: pixels in bytes are a quarter of the copy.
    """
    if tensor.device == device or tensor.device.type != "cpu":
        return tensor.to(device=device, dtype=dtype)
    if device.type == "cuda":  # pragma: no cover
        tensor = tensor.pin_memory()  # the allocator keeps it until the copy is done
    return tensor.to(device=device, non_blocking=True).to(dtype=dtype or tensor.dtype)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All tensors on the host, those of one device by one copy; those of the CPU unchanged.

    Their bytes are joined on the device and split on the host, each in its own memory: the last digits of a matrix
    product may depend on how its inputs are aligned.
    """
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not away:
        return list(tensors)
    # a copy of each: one number that was expanded counts as contiguous, but has no stride to read bytes by
    plain = (tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in away)
    flat = [tensor.flatten().view(torch.uint8) for tensor in plain]
    parts = torch.cat(flat).cpu().split([len(each) for each in flat])
    copies = iter([part.clone().view(own.dtype).view(own.shape) for part, own in zip(parts, away, strict=True)])
    return [tensor if tensor.device.type == "cpu" else next(copies) for tensor in tensors]
