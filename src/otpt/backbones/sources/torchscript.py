"""Weights out of a TorchScript archive (OpenAI's ``.pt`` files) without running its code.

Such an archive is a zip file with compiled code, a pickle ``<name>/data.pkl`` of the module tree, and one
record ``<name>/data/<key>`` for each tensor's memory. ``torch.jit.load`` would load the code as well; here
the pickle is read by an unpickler that can build nothing but tensors, dictionaries and inert stand-ins for
the modules.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
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

_MAX_RATIO = 20  # weights hardly compress, and torch stores them as they are
_MAX_MODULES = 100_000  # the largest CLIP has some thousands
_MAX_DEPTH = 100
_MAX_SHARED = 64 << 20  # bytes of a tensor whose values share memory


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
    """All tensors of the archive's module tree by dotted name, parameters, buffers and tensor attributes alike."""
    tensors: dict[str, Tensor] = {}
    for visited, (name, value) in enumerate(_walk(read_archive(path, TensorUnpickler), "", frozenset())):
        if visited > _MAX_MODULES:  # a few modules that hold each other in turn make a tree without end
            raise pickle.UnpicklingError("holds more modules than any model has")
        if isinstance(value, Tensor):
            tensors[name] = value
    return tensors


def read_archive(path: Path, unpickler: type[TensorUnpickler]) -> Any:
    """The object in a zip file of ``torch.save`` or ``torch.jit.save``, built by ``unpickler``."""
    with zipfile.ZipFile(path) as archive:
        tree = next(name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl")
        prefix = tree[: -len("data.pkl")]
        orders = [name for name in archive.namelist() if name == f"{prefix}byteorder"]
        if orders and archive.read(orders[0]) != b"little":
            raise OtptError(f"The archive {path} was written on a big-endian machine; convert it to safetensors.")
        content = archive.read(tree)
        _check_pickle(content)
        return unpickler(io.BytesIO(content), lambda key: archive.read(f"{prefix}data/{key}")).load()


def check_archive(path: Path) -> None:
    """``OtptError`` for a zip file that would unpack to far more than it is: zeros, or records that overlap."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(record.file_size for record in archive.infolist())
    size = os.path.getsize(path)
    if unpacked > _MAX_RATIO * size + (1 << 20):
        raise OtptError(
            f"The archive {path} has {size:,} bytes and would unpack to {unpacked:,}, expected at most {_MAX_RATIO} "
            "times as many; save it again with torch.save."
        )


def tensors_of(content: Any) -> dict[str, Tensor]:
    """The tensors of a dictionary by name, each with a plausible extent; none if it is something else."""
    pairs = content.items() if isinstance(content, dict) else ()
    tensors = {str(name): value for name, value in pairs if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        _check_extent(name, tensor)
    return tensors


def _check_extent(name: str, tensor: Tensor) -> None:
    """``OtptError`` for a large tensor whose values share memory, a few bytes as terabytes; or without any values."""
    if tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
        raise OtptError(
            f"The tensor {name!r} is sparse, quantized or without values; expected plain ones: save it again as such."
        )
    size = tensor.numel() * tensor.element_size()
    if size > _MAX_SHARED and size > tensor.untyped_storage().nbytes():
        raise OtptError(
            f"The tensor {name!r} says that it has {tensor.numel():,} values, expected no more than the file holds; it "
            "is damaged or hostile: save it again with torch.save."
        )


def _check_pickle(content: bytes) -> None:
    """Refuses what would make an unpickler reserve memory for more than the pickle itself has."""
    for opcode, argument, _ in pickletools.genops(content):  # which itself refuses texts longer than the rest
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT", "FRAME") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("refers to more than it holds")


class _Module:
    """Stands for a module of the archive: keeps its attributes, does nothing."""

    attributes: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class TensorUnpickler(pickle.Unpickler):
    """Builds only what a module tree is made of; any other name in the pickle is refused before it is looked up."""

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
            data = self._read_record(key)
            # never memory of torch's own, even for no values: a pickle can have a tensor of it grow to any size
            whole = torch.frombuffer(bytearray(data or bytes(dtype.itemsize)), dtype=dtype)
            self._memory[key] = whole if data else whole[:0]
        return self._memory[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    tensor = storage.as_strided(size, stride, offset)  # torch refuses what would reach beyond the record
    _check_extent("of the archive", tensor)
    return tensor


def _first_argument(value: Any, *_: Any) -> Any:
    return value


_REBUILD = {"_rebuild_tensor_v2": _rebuild_tensor, "_rebuild_parameter": _first_argument}


def _walk(node: Any, prefix: str, above: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """The attributes of a module and of those within it, by dotted name."""
    if not isinstance(node, _Module) or id(node) in above or len(above) > _MAX_DEPTH:
        return
    for name, value in getattr(node, "attributes", {}).items():
        yield f"{prefix}{name}", value
        if isinstance(value, _Module):
            yield from _walk(value, f"{prefix}{name}.", above | {id(node)})
