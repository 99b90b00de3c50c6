"""Copies between host and device: few of them, and none that is waited for without need.

A GPU works through a queue. Whoever asks it for a number waits until the queue is empty, and the queue stays empty
until the host has given it work again. So what the host needs is asked for together, in one copy (:func:`to_host`), and
several pieces of work that wait at the same time share it (:func:`join`). What goes to the device is copied without
waiting (:func:`to_device`). On the CPU all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")

Steps = Generator[Sequence[Tensor], list[Tensor], _T]
"""Work that hands out tensors which it needs on the host, gets them there, and goes on; in the end it returns."""


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on a device, in its own type or another; from the host by way of page-locked memory, without waiting.

    The type is changed on the device: pixels in bytes are a quarter of the copy.
    """
    if tensor.device == device or tensor.device.type != "cpu":
        return tensor.to(device=device, dtype=dtype)
    if device.type == "cuda":  # pragma: no cover
        tensor = tensor.pin_memory()  # the allocator keeps it until the copy is done
    return tensor.to(device=device, non_blocking=True).to(dtype=dtype or tensor.dtype)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All tensors on the host, those of one device by one copy; those of the CPU as they are.

    Their bytes are joined on the device and cut apart on the host, each in memory of its own: the last digits of a
    matrix product may depend on how its inputs are aligned.
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


def join(works: Sequence[Steps[_T]]) -> Steps[list[_T]]:
    """Several pieces of work as one: whenever they wait, they wait together. Returns what each returns."""
    results: dict[int, _T] = {}
    wanted: dict[int, Sequence[Tensor]] = {}

    def advance(i: int, given: list[Tensor] | None) -> None:
        try:
            wanted[i] = next(works[i]) if given is None else works[i].send(given)
        except StopIteration as end:
            results[i] = end.value

    for i in range(len(works)):
        advance(i, None)
    while wanted:
        asked = dict(wanted)
        wanted.clear()
        found = iter((yield [tensor for each in asked.values() for tensor in each]))
        for i, tensors in asked.items():
            advance(i, [next(found) for _ in tensors])
    return [results[i] for i in range(len(works))]


def run(work: Steps[_T]) -> _T:
    """Do the work; each time it waits is one copy to the host."""
    try:
        wanted = next(work)
        while True:
            wanted = work.send(to_host(wanted))
    except StopIteration as end:
        result: _T = end.value
        return result
