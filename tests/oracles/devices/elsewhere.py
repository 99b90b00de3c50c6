"""Tensors that claim to be on another device: a GPU for tests on a machine that has none.

    backbone = tiny_backbone().to("lazy:0")         # within :func:`claimed_devices`
    with counted() as counts:
        Classifier(backbone).set_classes(names).predict(image)
    counts.synchronisations, counts.uploaded_bytes

A tensor of ``lazy:0`` or ``lazy:1`` wraps a CPU tensor and computes with it. Like CUDA's it refuses to meet tensors of
another device, except for those without dimensions, and it is counted what a GPU's queue would be waited for:

* values that Python asks for (``.item()``, ``bool()``, ``float()``, ``.tolist()``), copies to the host;
* results whose size depends on values (``nonzero``, indexing by a mask, ``unique``), and decompositions, which check
  their own success;
* copies from the host, unless they are ``non_blocking``.

PyTorch's dispatcher knows the type ``lazy``, which has no kernels of its own: what makes a tensor from nothing is
registered for it here, for all threads; everything else reaches ``__torch_dispatch__``. A claimed ``cuda`` would
abort in autograd, which asks the driver.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

DEVICES = ("lazy:0", "lazy:1")

_aten = torch.ops.aten
_VALUES = {_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.equal.default}
_SIZES = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
}
_DECOMPOSITIONS = {_aten._linalg_svd.default, _aten._linalg_eigh.default, _aten.linalg_inv_ex.default}
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
_COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten._copy_from.default}
_TO = {_aten.to.device, _aten.to.dtype_layout, _aten.to.other}
_JOINS = {_aten.cat.default, _aten.stack.default}
_NOTED = _VALUES | _SIZES | _DECOMPOSITIONS | _INDEXING | _COPIES | _TO


@dataclass
class Counts:
    """What happened between host and devices.

    Attributes:
        waits: why and where in the package the host waited for a device, with how often.
        uploads: copies from the host; uploaded_bytes: their size.
        devices: that computed something.
    """

    waits: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    uploaded_bytes: int = 0
    devices: set[str] = field(default_factory=set)

    @property
    def synchronisations(self) -> int:
        """How often the host waited."""
        return sum(self.waits.values())

    def add(self, other: Counts) -> None:
        """Also what was counted elsewhere."""
        self.waits += other.waits
        self.uploads += other.uploads
        self.uploaded_bytes += other.uploaded_bytes
        self.devices |= other.devices

    def wait(self, why: str) -> None:
        """One more."""
        self.waits[f"{why} at {_caller()}"] += 1

    def upload(self, tensor: Tensor, *, waits: bool) -> None:
        """A copy from the host; PyTorch waits for it unless it is told not to."""
        self.uploads += 1
        self.uploaded_bytes += tensor.numel() * tensor.element_size()
        if waits:
            self.wait("blocking copy from the host")


_counting: list[Counts] = []


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts what all threads do meanwhile."""
    counts = Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


@contextmanager
def claimed_devices() -> Iterator[tuple[str, ...]]:
    """The claimed devices can be chosen by name, as if this machine had them."""
    from otpt.backbones import devices

    names = [*devices.available_devices(), *DEVICES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "available_devices", lambda: names)
        yield DEVICES


class ElsewhereTensor(torch.Tensor):
    """A CPU tensor that says it is on ``lazy:index``."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> ElsewhereTensor:
        """``inner`` as a tensor of ``device``."""
        made: ElsewhereTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=_indexed(device),
            requires_grad=False,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {self.device}"

    def tolist(self) -> Any:
        """Through the host, as every device's."""
        return self.cpu().tolist()

    def untyped_storage(self) -> Any:
        """The memory that it really has: a device's tensor has an address, too."""
        return self.inner.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> ElsewhereTensor:
        copy = ElsewhereTensor(self.inner.detach().clone(), self.device).requires_grad_(self.requires_grad)
        copy.__dict__.update({name: value for name, value in self.__dict__.items() if name != "inner"})
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickled, (self.inner.detach(), str(self.device), self.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the host what was asked of the device."""
        kwargs = dict(kwargs or {})
        found = list(_leaves([*args, *kwargs.values()]))
        tensors = [each for each in found if isinstance(each, Tensor)]
        here = next(each.device for each in tensors if isinstance(each, ElsewhereTensor))
        _check_devices(func, tensors)
        # in inference mode ``to`` comes whole, with its device by position
        target = next((_indexed(each) for each in found if isinstance(each, torch.device)), here)
        _count(func, args, kwargs, tensors, target)
        if func in _COPIES and func is not _aten._to_copy.default:
            _inner(args[0]).copy_(_inner(args[1]))
            return args[0]
        if func is _aten._fused_sdp_choice.default:
            return 0  # the formula, operator by operator: fused kernels are a device's own
        out = func(*_inner(args), **{name: _inner(value) for name, value in kwargs.items()})
        if target.type == "cpu":
            return out
        view, aliases = _returns(func)
        # a view of an ordinary tensor is an ordinary one, in inference mode too
        with torch.inference_mode(args[0].is_inference()) if view else nullcontext():
            out = _claimed(out, target)
        return return_and_correct_aliasing(func, args, kwargs, out) if aliases else out


def _unpickled(inner: Tensor, device: str, requires_grad: bool) -> ElsewhereTensor:
    return ElsewhereTensor(inner, torch.device(device)).requires_grad_(requires_grad)


@cache
def _returns(func: Any) -> tuple[bool, bool]:
    """Whether an operator gives a view of its argument; whether it gives a view or the argument itself."""
    aliases = [each.alias_info for each in func._schema.returns if each.alias_info is not None]
    return any(not each.is_write for each in aliases), bool(aliases)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Arguments and those within lists; by hand, which is much quicker than PyTorch's trees."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _inner(value: Any) -> Any:
    """Arguments as the CPU takes them."""
    if isinstance(value, ElsewhereTensor):
        return value.inner
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(map(_inner, value)) if isinstance(value, (list, tuple)) else value


def _claimed(value: Any, device: torch.device) -> Any:
    """Results as those of a device."""
    if isinstance(value, Tensor):
        return ElsewhereTensor(value, device)
    return type(value)(_claimed(each, device) for each in value) if isinstance(value, (list, tuple)) else value


def _indexed(device: torch.device) -> torch.device:
    return torch.device("lazy", device.index or 0) if device.type == "lazy" else device


def _check_devices(func: Any, tensors: list[Tensor]) -> None:
    """As CUDA does: one device for all that have dimensions; indices may be on the host, and are copied."""
    if func in _COPIES or all(each.device == tensors[0].device for each in tensors):
        return
    if func in _INDEXING and tensors[0].device.type == "lazy":
        own = [each for each in tensors if each.device.type != "cpu" or each.is_floating_point()]
    elif func in _JOINS:
        own = tensors
    else:
        own = [each for each in tensors if each.ndim or each.device.type != "cpu"]
    devices = sorted({str(each.device) for each in own if each.ndim or each.device.type != "cpu" or func in _JOINS})
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(devices)}, "
            f"in {func}."
        )


def _count(func: Any, args: Any, kwargs: Any, tensors: list[Tensor], target: torch.device) -> None:
    for counts in _counting:
        counts.devices.update(str(each.device) for each in tensors if each.device.type != "cpu")
        if func in _NOTED:
            _note(counts, func, args, kwargs, target)


def _note(counts: Counts, func: Any, args: Any, kwargs: Any, target: torch.device) -> None:
    waits = not (kwargs.get("non_blocking") or (func is _aten.copy_.default and len(args) > 2 and args[2]))
    if func in _VALUES:
        counts.wait("value")
    elif func in _SIZES:
        counts.wait("size")
    elif func in _DECOMPOSITIONS:
        counts.wait("decomposition")
    elif func in _INDEXING:
        for index in args[1]:
            if index is not None and index.device.type == "cpu":
                counts.upload(index, waits=True)
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                counts.wait("size")
    elif (args[0].device if func is _aten.copy_.default else target).type == "cpu":
        counts.wait("copy to the host")
    elif func is _aten.copy_.default and args[1].device.type == "cpu" and args[1].ndim:
        counts.upload(args[1], waits=waits)


def _caller() -> str:
    """Where in the package: file:line."""
    frame: Any = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if "/otpt/" in name and "/tests/" not in name:
            return f"{name.rpartition('/otpt/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return ElsewhereTensor(torch.empty(size, dtype=dtype, memory_format=memory_format), device)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return ElsewhereTensor(torch.empty_strided(size, stride, dtype=dtype), device)


def _copy_from(source: Tensor, into: Tensor, non_blocking: bool = False) -> Tensor:
    """How ``torch.tensor(…, device=…)`` fills what it made."""
    for counts in _counting:
        if source.device.type == "cpu" and source.ndim:
            counts.upload(source, waits=not non_blocking)
    _inner(into).copy_(_inner(source))
    return into


_kernels = torch.library.Library("aten", "IMPL", "Lazy")
for _name, _kernel in (("empty.memory_format", _empty), ("empty_strided", _empty_strided), ("_copy_from", _copy_from)):
    _kernels.impl(_name, _kernel)
