"""What a medical system has learned, as one safetensors file: tensors, and notes on what they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from otpt.errors import OtptError
from otpt.evaluation.files import write_atomically
from otpt.prompts.learned.archives import read_tensors

_NOTES = "otpt"


@dataclass(frozen=True)
class Trained:
    """A file's content.

    Attributes:
        path: where it was read.
        tensors: by name.
        notes: of ``otpt train``: system, method, class names, the backbone's fingerprint, the recipe; empty for files
            of other programs.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of the tensors."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].float().contiguous()
            digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:32]

    def need(self, name: str, *shape: int | None) -> Tensor:
        """A tensor, float32; an error if it is missing, of another shape (None: any length) or not finite."""
        tensor = self.tensors.get(name)
        if tensor is None:
            held = ", ".join(list(self.tensors)[:6]) or "no tensors"
            raise OtptError(f"The file {str(self.path)!r} has no tensor {name}; it holds {held}.")
        fits = len(shape) == tensor.ndim and all(w in (None, g) for w, g in zip(shape, tensor.shape, strict=True))
        if not fits:
            wanted = "×".join("any" if side is None else str(side) for side in shape)
            given = "×".join(map(str, tensor.shape))
            raise OtptError(f"The tensor {name} in {str(self.path)!r} is {given}; expected {wanted}.")
        if not bool(tensor.isfinite().all()):
            raise OtptError(f"The tensor {name} in {str(self.path)!r} holds values that are not finite.")
        return tensor.float()


def write_trained(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {_NOTES: json.dumps(notes, ensure_ascii=False)}))


def read_trained(path: Path) -> Trained:
    """Read a file of :func:`write_trained`, or the checkpoint of another program; no code in it is run."""
    tensors, notes = read_tensors(path)
    return Trained(path, tensors, json.loads(notes[_NOTES]) if _NOTES in notes else {})
