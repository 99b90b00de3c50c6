"""Files of ``otpt train baple|fpt``: tensors in safetensors, with notes on what they belong to.

A file says which method, target class and class list it is for. For a file of another program write ``METHOD=FILE``,
and for BAPLe ``METHOD:TARGET=FILE`` with the number of the target class (0, 1, …).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor

from otpt.backbones import read_tensors
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.files import parse_json, write_atomically
from otpt.hooks import EvaluationHook
from otpt.prompts.learned import check_values
from otpt.registry import CLEAN, NONE
from otpt.settings import Settings

if TYPE_CHECKING:  # importing methods imports this module
    from otpt.methods import Group, Method, Methods

ONLY = {"init": ("words",), "calibrate": (NONE,), "aggregate": (CLEAN,), "gate": (NONE,)}
"""What a method with a trained network can be combined with."""

Shape = tuple[int | None, ...]
_NOTES = "otpt"
_GIVEN = re.compile(r"(?P<method>(?:baple|fpt)[^=:/\\]*)(?::(?P<target>\d+))?=(?P<file>.+)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Trained:
    """A file's content.

    Attributes:
        path: where it was read.
        tensors: by name.
        notes: of ``otpt train``: method, target, class names, the backbone's fingerprint, the recipe; empty for files
            of other programs.
        method, target: what it is for; the target is that of BAPLe, None for others.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]
    method: str = ""
    target: int | None = None

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of the tensors."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].float().contiguous()
            digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:32]

    def need(self, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """Return tensors of these names and shapes in float32; None in a shape allows any length."""
        for name, shape in shapes.items():
            size = tuple(self.tensors[name].shape) if name in self.tensors else None
            if (
                size is None
                or len(size) != len(shape)
                or any(b not in (None, a) for a, b in zip(size, shape, strict=True))
            ):
                given, expected = ("×".join("…" if n is None else str(n) for n in each) for each in (size or (), shape))
                raise OtptError(
                    f"In the file {str(self.path)!r} {name} is {given or 'missing'}; expected a tensor of {expected}."
                )
        found = {name: self.tensors[name].float() for name in shapes}
        check_values(self.path, found)
        return found

    def check(self, class_names: Sequence[str], fingerprint: str) -> None:
        """Raise ``OtptError`` if the file was trained for other classes or on another model."""
        classes, backbone = self.notes.get("classes"), self.notes.get("backbone", fingerprint)
        where = f"The file {str(self.path)!r} was trained"
        if classes is not None and list(classes) != list(class_names):
            raise OtptError(f"{where} for the classes {_some(classes)}; this data set has {_some(class_names)}.")
        if backbone != fingerprint:
            raise OtptError(f"{where} on another backbone (fingerprint {backbone}); this one is {fingerprint}.")


def write_trained(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write a file atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, {_NOTES: json.dumps(notes, ensure_ascii=False)}))


def read_trained(path: Path) -> Trained:
    """Read a file of :func:`write_trained`, or the checkpoint of another program; no code in it is run."""
    tensors, texts = read_tensors(path, what="trained file", ignore_objects=True)
    try:
        notes = dict(parse_json(texts.get(_NOTES, "{}")))
    except (TypeError, ValueError):
        raise OtptError(f"The notes in the file {str(path)!r} are damaged; expected a file of 'otpt train'.") from None
    return Trained(path, tensors, notes, notes.get("method", ""), notes.get("target"))


@lru_cache(maxsize=4)
def read_trained_files(given: tuple[str, ...]) -> tuple[Trained, ...]:
    """Read files that are written as the module says."""
    found: list[Trained] = []
    for each in given:
        match = _GIVEN.fullmatch(each)
        file = read_trained(Path(match["file"] if match else each).expanduser())
        if match:
            file = replace(file, method=match["method"])
            file = replace(file, target=int(match["target"])) if match["target"] else file
        if not file.method:
            raise OtptError(
                f"The file {str(file.path)!r} does not say which method it is for; write METHOD=FILE, and for BAPLe "
                "METHOD:TARGET=FILE with the number of the target class."
            )
        if any((file.method, file.target) == (other.method, other.target) for other in found):
            target = "" if file.target is None else f" and target class {file.target}"
            raise OtptError(f"Two files were given for method {file.method!r}{target}; expected one.")
        found.append(file)
    return tuple(found)


def file_for(files: Sequence[Trained], method: Method, target: int | None = None) -> Trained:
    """The file of a method (and target)."""
    for file in files:
        if (file.method, file.target) == (method.name, target):
            return file
    named = "" if target is None else f" with target class {target}"
    raise OtptError(
        f"Method {method.name!r}{named} needs a trained file: make it with 'otpt train {method.adapt}', and give it "
        "with --trained FILE."
    )


class TrainedHook(EvaluationHook):
    """Evaluation of a network of ``otpt train``, with ``plugins={"trained": files}``; nothing in it is random."""

    def files(self, settings: Any) -> tuple[Trained, ...]:
        """The files that an evaluation was given."""
        return read_trained_files(tuple(settings.plugins.get("trained") or ()))

    def check(self, settings: Any, methods: Sequence[Method]) -> None:
        """Refuse seeds."""
        if settings.seeds != (0,):
            raise OtptError(f"The evaluation of {methods[0].name} has no seeds to choose: nothing in it is random.")

    def plugins(self, settings: Any, dataset: Dataset) -> Mapping[str, Any]:
        """Return the files, read."""
        return {"trained": self.files(settings)}

    def prompt_facts(self, settings: Settings, method: Method) -> Mapping[str, Any]:
        """Return the digest of the method's file."""
        target = settings.plugins.get(method.adapt, {}).get("target")
        return {"trained": file_for(settings.plugins["trained"], method, target).digest}

    def learned_from(self, settings: Any) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the training images of each file."""
        for file in self.files(settings):
            yield repr(file.method), tuple(file.notes.get("images", ()))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" … ({len(names)} in all)" if len(names) > 4 else "")


def register_trained(
    name: str,
    make: Callable[[Methods, Any, Settings], Group],
    *,
    prompt: str,
    hook: EvaluationHook,
    needs_text_tower: bool = True,
) -> None:
    """Register a system of ``otpt train``.

    Args:
        make: prepares its methods; an error if a file is missing or does not fit.
        prompt: in place of a prompt's name in the results.
    """
    from otpt.methods import Kind, register_kind

    def check(backbone: Any, settings: Settings, methods: Methods) -> None:
        make(methods, backbone, settings)

    register_kind(
        name,
        Kind(
            lambda backbone, settings, methods, cache: [make(methods, backbone, settings)],
            check,
            needs_image=lambda method: True,
            needs_features=False,
            names=lambda settings, method: [prompt],
            needs_text_tower=needs_text_tower,
            trained=True,
            evaluation=hook,
        ),
        only=ONLY,
    )
