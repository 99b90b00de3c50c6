"""Memory that an object keeps: counted where it is, not estimated."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import torch
from torch import Tensor

_NOT_ITS_OWN = (type, ModuleType, CodeType, BuiltinFunctionType, torch.nn.Module, torch.dtype, torch.device)


def retained_bytes(thing: object, shared: Iterable[object] = ()) -> int:
    """Return the bytes of an object and of everything that it refers to.

    Not counted are classes, modules, networks, the objects in ``shared``, and what only these refer to. Numbers of a
    tensor are those of its storage, once; graphs of gradients are not seen.

    >>> retained_bytes({"a": torch.zeros(1000)}) > 4000
    True
    """
    seen = {id(other) for other in shared}
    total = 0
    pending = [thing]
    while pending:
        current = pending.pop()
        if id(current) in seen or isinstance(current, _NOT_ITS_OWN):
            continue
        seen.add(id(current))
        total += sys.getsizeof(current)
        if isinstance(current, Tensor):
            storage = current.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(current, FunctionType):  # its globals belong to its module
            pending += [current.__closure__, current.__defaults__, current.__kwdefaults__]
        elif isinstance(current, MethodType):
            pending.append(current.__self__)
        else:
            pending += gc.get_referents(current)
    return total
