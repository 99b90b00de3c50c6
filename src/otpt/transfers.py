"""Copies between host and device.

A GPU works through a queue; reading a number from it waits until the queue is empty. So :func:`to_host` copies all
tensors together, and :func:`to_device` does not wait. On the CPU both do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor to a device through page-locked memory, without waiting, and convert it to ``dtype`` there.

    Pixels in bytes are a quarter of the copy.
    """
    if tensor.device == device or tensor.device.type != "cpu":
        return tensor.to(device=device, dtype=dtype)
    if device.type == "cuda":  # pragma: no cover
        tensor = tensor.pin_memory()  # the allocator keeps it until the copy is done
    return tensor.to(device=device, non_blocking=True).to(dtype=dtype or tensor.dtype)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy all tensors to the host at once; tensors on the CPU are returned unchanged.

    Bytes are joined on the device and split on the host into separate memory: the last digits of a matrix product may
    depend on the alignment of its inputs.
    """
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not away:
        return list(tensors)
    # a copy of each: one number that was expanded counts as contiguous, but has no stride to read bytes by
    plain = (tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in away)
    flat = [tensor.flatten().view(torch.uint8) for tensor in plain]
    parts = torch.cat(flat).cpu().split([len(data) for data in flat])
    pairs = zip(parts, away, strict=True)
    copies = iter([part.clone().view(source.dtype).view(source.shape) for part, source in pairs])
    return [tensor if tensor.device.type == "cpu" else next(copies) for tensor in tensors]
