"""Weights out of a TorchScript archive (OpenAI's ``.pt`` files) without running its code.

Such an archive is a zip file with compiled code, a pickle ``<name>/data.pkl`` of the module tree, and one
record ``<name>/data/<key>`` for each tensor's memory. ``torch.jit.load`` would load the code as well; here
the pickle is read by an unpickler that can build nothing but tensors, dictionaries and inert stand-ins for
the modules.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otpt.errors import OtptError

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_torchscript(path: Path) -> bool:
    """Whether the file is a zip with a module tree *and* the constants of compiled code, as
    ``torch.jit.save`` writes.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = [name.split("/", 1)[-1] for name in archive.namelist()]
    return "data.pkl" in names and "constants.pkl" in names


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """All tensors of the archive's module tree by dotted name, parameters, buffers and tensor attributes
    alike.
    """
    tensors: dict[str, Tensor] = {}
    _collect(read_archive(path, TensorUnpickler), "", tensors, set())
    return tensors


def read_archive(path: Path, unpickler: type[TensorUnpickler]) -> Any:
    """The object in a zip file of ``torch.save`` or ``torch.jit.save``, built by ``unpickler``."""
    with zipfile.ZipFile(path) as archive:
        tree = next(name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl")
        prefix = tree[: -len("data.pkl")]
        orders = [name for name in archive.namelist() if name == f"{prefix}byteorder"]
        if orders and archive.read(orders[0]) != b"little":
            raise OtptError(f"The archive {path} was written on a big-endian machine; convert it to safetensors.")
        with archive.open(tree) as stream:
            return unpickler(stream, lambda key: archive.read(f"{prefix}data/{key}")).load()


class _Module:
    """Stands for a module of the archive: keeps its attributes, does nothing."""

    attributes: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class TensorUnpickler(pickle.Unpickler):
    """Builds only what a module tree is made of; any other name in the pickle is refused before it is
    looked up.
    """

    def __init__(self, stream: Any, read_record: Callable[[str], bytes]) -> None:
        super().__init__(stream)
        self._read_record = read_record
        self._memory: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch._utils" and name in _REBUILD:
            return _REBUILD[name]
        if module == "torch.jit._pickle" and (name.startswith("build_") or name == "restore_type_tag"):
            return _first_argument
        raise pickle.UnpicklingError(f"refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        kind, dtype, key, _location, _count = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not str(key).isalnum():
            raise pickle.UnpicklingError("holds a record that is not a tensor's memory")
        if key not in self._memory:
            data = bytearray(self._read_record(key))
            self._memory[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self._memory[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)  # torch refuses what would reach beyond the record


def _first_argument(value: Any, *_: Any) -> Any:
    return value


_REBUILD = {"_rebuild_tensor_v2": _rebuild_tensor, "_rebuild_parameter": _first_argument}


def _collect(node: Any, prefix: str, tensors: dict[str, Tensor], above: set[int]) -> None:
    if not isinstance(node, _Module) or id(node) in above:
        return
    for name, value in getattr(node, "attributes", {}).items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}{name}"] = value
        else:
            _collect(value, f"{prefix}{name}.", tensors, above | {id(node)})
