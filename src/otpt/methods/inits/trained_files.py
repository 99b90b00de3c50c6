"""What a medical system has learned, as one safetensors file: tensors, and notes on what they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save
from torch import Tensor

from otpt.backbones import read_tensors
from otpt.errors import OtptError
from otpt.files import parse_json, write_atomically
from otpt.prompts.learned import Shape, check_values, expect_tensors

_NOTES = "otpt"
_KINDS = {"method": str, "target": int, "classes": list, "backbone": str, "images": list}
"""Notes that are read, where they are there."""

_Made = TypeVar("_Made")


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

    def need(self, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """Tensors of these names in float32; an error that names all that are missing or of another shape."""
        expect_tensors(self.path, self.tensors, shapes)
        found = {name: self.tensors[name].float() for name in shapes}
        check_values(self.path, found)
        return found

    def noted(self, name: str, make: Callable[..., _Made]) -> _Made:
        """What ``make`` makes of the numbers noted under a name; an error if it cannot."""
        try:
            return make(**self.notes.get(name, {}))
        except OtptError:
            raise
        except Exception:  # whatever wrong numbers lead to
            raise _damaged(self.path) from None


def _damaged(path: Path) -> OtptError:
    """The error for a file whose notes cannot be used."""
    return OtptError(f"The notes in the file {str(path)!r} are damaged; expected what 'otpt train' has written.")


def write_trained(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {_NOTES: json.dumps(notes, ensure_ascii=False)}))


def read_trained(path: Path) -> Trained:
    """Read a file of :func:`write_trained`, or the checkpoint of another program; no code in it is run."""
    tensors, texts = read_tensors(path, what="trained file", ignore_objects=True)
    try:
        notes = parse_json(texts.get(_NOTES, "{}"))
    except ValueError:
        raise _damaged(path) from None
    if not _are_ours(notes):
        raise _damaged(path)
    return Trained(path, tensors, notes)


def _are_ours(notes: Any) -> bool:
    """Whether the notes that are read are of the kinds that are written."""
    if not isinstance(notes, dict) or not all(isinstance(notes.get(key, kind()), kind) for key, kind in _KINDS.items()):
        return False
    return notes.get("target", 0) >= 0 and all(isinstance(each, str) for each in notes.get("classes", ()))
