"""Checkpoints of trainers, read without trusting them: only tensors are read.

A checkpoint of Dassl holds the state of optimiser and scheduler beside the weights, and with it pickled objects of
PyTorch that ``torch.load(weights_only=True)`` refuses. Here such objects are replaced by stand-ins that do nothing: no
class that the file names is looked up, and no code is run.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from otpt.backbones.sources.torchscript import TensorUnpickler, check_archive, read_archive, tensors_of
from otpt.errors import OtptError

Shape = tuple[int | None, ...]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, from its "state_dict" if it has one; and its notes (texts by name)."""
    if not os.path.isfile(path):
        raise OtptError(f"There is no file of a learned prompt at {str(path)!r}.")
    try:
        content = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    except PermissionError:
        raise OtptError(f"Cannot read {str(path)!r}: permission denied.") from None
    except OtptError:
        raise
    except MemoryError:
        raise OtptError(f"The file {str(path)!r} does not fit into memory; check that it is the right file.") from None
    except Exception:  # a damaged file can raise nearly anything inside a format's reader
        raise OtptError(
            f"The file {str(path)!r} cannot be read as a learned prompt: it is damaged or of another format; expected "
            "a checkpoint of torch.save, or .safetensors."
        ) from None
    tensors = tensors_of(content.get("state_dict", content))
    notes = {str(name): value for name, value in content.items() if isinstance(value, str)}
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}, notes


def expect_tensors(path: str | Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    """``OtptError`` naming all missing and misshapen tensors; None stands for any length."""
    missing = [name for name in shapes if name not in tensors]
    wrong = [f"missing {', '.join(missing)}"] if missing else []
    wrong += [
        f"{name} is {_words(tensors[name].shape)}, expected {_words(shape)}"
        for name, shape in shapes.items()
        if name in tensors and not _fits(tuple(tensors[name].shape), shape)
    ]
    if wrong:
        raise OtptError(f"The file {str(path)!r} does not hold what was expected: {'; '.join(wrong)}.")


def check_values(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """``OtptError`` for the first tensor that is empty or not finite."""
    for name, tensor in tensors.items():
        if not tensor.numel():
            raise OtptError(f"The file {str(path)!r} is damaged: {name} is empty.")
        if not bool(tensor.isfinite().all()):
            raise OtptError(f"The file {str(path)!r} is damaged: {name} holds values that are not finite.")


def _fits(found: tuple[int, ...], expected: Shape) -> bool:
    return len(found) == len(expected) and all(b in (None, a) for a, b in zip(found, expected, strict=True))


def _words(shape: Shape) -> str:
    return "×".join("…" if side is None else str(side) for side in shape) or "a scalar"


def _safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return {**(file.metadata() or {}), "state_dict": tensors}


def _torch(path: Path) -> dict[str, Any]:
    check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        content = read_archive(path, _InertUnpickler)
    return content if isinstance(content, dict) else {}


class _Inert:
    """Stands for any object of a file that is not a tensor or plain data: takes everything, does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, *_: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass


class _InertUnpickler(TensorUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except pickle.UnpicklingError:
            return _Inert
