"""Files of ``otpt train baple|fpt``: tensors in safetensors, with notes on the method, target class and class list.

A file of another program is given as ``METHOD=FILE``, and for BAPLe as ``METHOD:TARGET=FILE`` with the number of the
target class (0, 1, …).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor

from otpt.backbones import read_tensors
from otpt.data import Dataset
from otpt.data.registered import shortened
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.hooks import EvaluationHook
from otpt.prompts.learned import check_values
from otpt.registry import CLEAN, NONE
from otpt.settings import Settings

if TYPE_CHECKING:  # importing methods imports this module
    from otpt.methods import Method, Methods

ONLY = {"init": ("words",), "calibrate": (NONE,), "aggregate": (CLEAN,), "gate": (NONE,)}
"""Parts that a method with its own network can be combined with."""

_NOTES = "otpt"
_GIVEN = re.compile(r"(?P<method>(?:baple|fpt)[^=:/\\]*)(?::(?P<target>\d+))?=(?P<file>.+)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Trained:
    """A file's content: tensors by name, the notes of ``otpt train`` (none in files of other programs), and the method
    and target class (BAPLe's, else None) that it is for.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]
    method: str = ""
    target: int | None = None

    @property
    def digest(self) -> str:
        """Digest of the tensors, 32 hexadecimal digits."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].float().contiguous()
            digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:32]

    def need(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return tensors of these names in float32."""
        missing = [name for name in names if name not in self.tensors]
        if missing:
            raise OtptError(f"The file {str(self.path)!r} has no {' and no '.join(missing[:3])}.")
        found = {name: self.tensors[name].float() for name in names}
        check_values(self.path, found)
        return found

    def check(self, class_names: Sequence[str], fingerprint: str) -> None:
        """Raise ``OtptError`` if the file was trained for other classes or on another model."""
        classes, backbone = self.notes.get("classes"), self.notes.get("backbone", fingerprint)
        where = f"The file {str(self.path)!r} was trained"
        if classes is not None and list(classes) != list(class_names):
            raise OtptError(
                f"{where} for the classes {shortened(classes)}; this data set has {shortened(class_names)}."
            )
        if backbone != fingerprint:
            raise OtptError(f"{where} on another backbone (fingerprint {backbone}); this one is {fingerprint}.")


def write_trained(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors and notes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {_NOTES: json.dumps(notes, ensure_ascii=False)}))


def read_trained(path: Path) -> Trained:
    """Read a file of :func:`write_trained`, or the checkpoint of another program; no code in it is run."""
    tensors, texts = read_tensors(path, what="trained file", ignore_objects=True)
    notes = json.loads(texts.get(_NOTES, "{}"))
    return Trained(path, tensors, notes, notes.get("method", ""), notes.get("target"))


@lru_cache(maxsize=4)
def read_trained_files(given: tuple[str, ...]) -> tuple[Trained, ...]:
    """Read files given as FILE, METHOD=FILE or METHOD:TARGET=FILE."""
    found: list[Trained] = []
    for each in given:
        match = _GIVEN.fullmatch(each)
        file = read_trained(Path(match["file"] if match else each).expanduser())
        if match:
            target = int(match["target"]) if match["target"] else file.target
            file = replace(file, method=match["method"], target=target)
        if not file.method:
            raise OtptError(
                f"The file {str(file.path)!r} does not say which method it is for; write METHOD=FILE, and for BAPLe "
                "METHOD:TARGET=FILE with the number of the target class."
            )
        if any((file.method, file.target) == (other.method, other.target) for other in found):
            raise OtptError(f"Two files were given for method {file.method!r} and target class {file.target}.")
        found.append(file)
    return tuple(found)


def file_for(files: Sequence[Trained], method: Method, target: int | None = None) -> Trained:
    """Return the file of a method and target class."""
    for file in files:
        if (file.method, file.target) == (method.name, target):
            return file
    named = "" if target is None else f" with target class {target}"
    raise OtptError(
        f"Method {method.name!r}{named} needs a trained file: make it with 'otpt train {method.adapt}', and give it "
        "with --trained FILE."
    )


class TrainedHook(EvaluationHook):
    """Evaluation of a network of ``otpt train``, with ``plugins={"trained": files}``; deterministic."""

    def files(self, settings: Any) -> tuple[Trained, ...]:
        """Return the files of an evaluation."""
        return read_trained_files(tuple(settings.plugins.get("trained") or ()))

    def check(self, settings: Any, methods: Sequence[Method]) -> None:
        """Reject seeds."""
        if settings.seeds != (0,):
            raise OtptError(f"The evaluation of {methods[0].name} is deterministic and has no seeds; remove them.")

    def plugins(self, settings: Any, dataset: Dataset) -> Mapping[str, Any]:
        """Return the files."""
        return {"trained": self.files(settings)}

    def prompt_facts(self, settings: Settings, method: Method) -> Mapping[str, Any]:
        """Return the digest of the method's file."""
        target = settings.plugins.get(method.adapt, {}).get("target")
        return {"trained": file_for(settings.plugins["trained"], method, target).digest}

    def learned_from(self, settings: Any) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the training images of each file."""
        for file in self.files(settings):
            yield repr(file.method), tuple(file.notes.get("images", ()))


def register_trained(name: str, group: type, *, hook: EvaluationHook, needs_text_tower: bool = True) -> None:
    """Register a system of ``otpt train``: ``group(methods, backbone, settings)`` reads its files."""
    from otpt.methods import Kind, register_kind

    def check(backbone: Any, settings: Settings, methods: Methods) -> None:
        group(methods, backbone, settings)

    register_kind(
        name,
        Kind(
            lambda backbone, settings, methods, cache: [group(methods, backbone, settings)],
            check,
            needs_image=lambda method: True,
            needs_features=False,
            names=lambda settings, method: [vars(group)["prompt"]],
            needs_text_tower=needs_text_tower,
            trained=True,
            evaluation=hook,
        ),
        only=ONLY,
    )
