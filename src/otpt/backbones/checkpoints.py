"""Safe reading of checkpoint files, without executing code from a file.

``torch.load(weights_only=True)`` loads only tensors and plain data. Two kinds of published files refer to further
classes, which are replaced by inert ones: OpenAI's TorchScript archives, with the weights in a tree of modules, and
Dassl checkpoints (CoOp, MaPLe), which also contain an optimiser and a scheduler.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from otpt.errors import OtptError

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
"""Integers that OpenAI's archives contain in addition to the weights."""


@dataclass(frozen=True)
class Checkpoint:
    """State dict of a checkpoint.

    Attributes:
        state: tensors by name.
        openai: whether the file is an archive of OpenAI, trained with QuickGELU.
    """

    state: dict[str, Tensor]
    openai: bool


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a safetensors file, a PyTorch state dict (plain or under "state_dict") or a TorchScript archive."""
    state, _ = read_tensors(path, what="checkpoint")
    while state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    openai = all(name in state for name in _NOT_WEIGHTS)
    weights = {
        name: tensor for name, tensor in state.items() if name not in _NOT_WEIGHTS and not name.endswith("attn_mask")
    }
    if not weights:
        raise OtptError(f"The file {path} contains no weights; expected the state dict of a CLIP model.")
    return Checkpoint(weights, openai)


def read_tensors(
    path: Path, *, what: str = "checkpoint", ignore_objects: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file by name, from its "state_dict" if present, and its metadata (strings by name).

    Args:
        path: file in the format of safetensors, ``torch.save`` or TorchScript.
        what: kind of the file in error messages.
        ignore_objects: skip objects of other classes instead of rejecting the file.
    """
    if not os.path.isfile(path):
        raise OtptError(f"There is no {what} file at {str(path)!r}; check the path.")
    try:
        content = _read(path, ignore_objects)
    except PermissionError:
        raise OtptError(f"Cannot read {str(path)!r}: permission denied; check its permissions.") from None
    except Exception as error:  # a corrupt file can raise nearly any exception
        unsafe = isinstance(error, pickle.UnpicklingError) and "Unsupported" in str(error)
        why = "it contains objects that could run code when loaded" if unsafe else "it is corrupt or of another format"
        raise OtptError(
            f"Cannot read {str(path)!r} as a {what}: {why}; expected a state dict of torch.save, or .safetensors."
        ) from error
    if not isinstance(content, dict):
        return {}, {}
    inner = content.get("state_dict")
    tensors = inner if isinstance(inner, dict) else content
    state = {str(name): value.detach() for name, value in tensors.items() if isinstance(value, Tensor)}
    return state, {str(name): value for name, value in content.items() if isinstance(value, str)}


def _read(path: Path, ignore_objects: bool) -> object:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return {**(file.metadata() or {}), "state_dict": tensors}
    if _is_torchscript(path):
        return _read_torchscript(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        if not ignore_objects:
            raise
        return _load_inert(path)


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = {name.split("/", 1)[-1] for name in archive.namelist()}
    return {"data.pkl", "constants.pkl"} <= names


def _read_torchscript(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript archive by dotted name, without its code."""
    plain = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(plain, "w") as copy:
        for record in archive.infolist():
            inner = record.filename.split("/", 1)[-1]
            if inner in ("data.pkl", "version", "byteorder") or inner.startswith("data/"):
                copy.writestr(record.filename, archive.read(record))
    plain.seek(0)
    return dict(_tensors_below(_load_inert(plain), ""))


class _Inert:
    """Placeholder for a class in a pickle; accepts any arguments and stores only the state."""

    state: object = None

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state


def _load_inert(file: Path | io.BytesIO) -> object:
    """Load a file with ``weights_only=True``, replacing classes that are not allowed by :class:`_Inert`."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    if isinstance(file, io.BytesIO):
        file.seek(0)
    with torch.serialization.safe_globals([(_Inert, name) for name in names]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _tensors_below(module: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    attributes = module.state if isinstance(module, _Inert) else None
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        yield from _tensors_below(value, f"{prefix}{name}.")
