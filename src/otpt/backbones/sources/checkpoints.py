"""Reading a checkpoint file without trusting it: in any format, only tensors are read and no code is run."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from otpt.backbones.sources.torchscript import check_archive, is_torchscript, read_torchscript, tensors_of
from otpt.errors import OtptError

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
#: Integers that OpenAI's archives carry beside the weights.
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size")


@dataclass(frozen=True)
class Checkpoint:
    """``state``: tensors by name. ``openai``: the file has the marks of OpenAI's own, trained with QuickGELU."""

    state: dict[str, Tensor]
    openai: bool


def read_checkpoint(path: Path) -> Checkpoint:
    """Weights of a safetensors file, a PyTorch state dict (plain or under "state_dict") or a TorchScript
    archive.
    """
    if not os.path.isfile(path):
        raise OtptError(f"There is no checkpoint file {path}.")
    try:
        if path.stat().st_size == 0:
            raise OtptError(f"The checkpoint {path} is empty (zero bytes); download or copy it again.")
        state = _read(path)
    except PermissionError as error:
        raise OtptError(f"The checkpoint {path} cannot be read: permission denied.") from error
    except pickle.UnpicklingError as error:
        raise OtptError(
            f"The checkpoint {path} is refused: {_why_refused(path)} "
            f"Save its state dict with torch.save or as safetensors."
        ) from error
    except OtptError:
        raise
    except MemoryError:
        raise OtptError(f"The checkpoint {path} does not fit into memory; check that it is the right file.") from None
    except Exception as error:  # a damaged file can raise nearly anything inside a format's reader
        raise OtptError(
            f"The file {path} cannot be read as a checkpoint ({'/'.join(SUFFIXES)}): it is damaged, incomplete or "
            f"of another format."
        ) from error
    weights = {name: tensor for name, tensor in state.items() if not _is_extra(name)}
    if not weights:
        raise OtptError(f"The file {path} holds no weights; expected the state dict of a CLIP model.")
    return Checkpoint(weights, openai=all(name in state for name in _NOT_WEIGHTS))


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return _only_tensors(load_file(path))
    check_archive(path)
    if is_torchscript(path):
        return _only_tensors(read_torchscript(path))
    return _only_tensors(torch.load(path, map_location="cpu", weights_only=True))


def _only_tensors(content: Any) -> dict[str, Tensor]:
    """Tensors by name, out of {"state_dict": …} if need be, without "module." before the names."""
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    tensors = tensors_of(content)
    while tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def _is_extra(name: str) -> bool:
    """Whether a tensor is no weight: one of these integers, or a mask that follows from the architecture."""
    return name in _NOT_WEIGHTS or name.rsplit(".", 1)[-1] == "attn_mask"


def _why_refused(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(2)
    if head[:1] == b"\x80" or head == b"PK":
        return "besides tensors it holds objects that could run code when read."
    return "it is not a PyTorch checkpoint."
