"""Systems with a network of ``otpt train baple|fpt``, and its files: safetensors with notes on the training.

The setting ``trained`` names the files, separated by semicolons. A file of another program has no notes; it is given as
``METHOD=FILE``, and for BAPLe with the number of the target class (0, 1, …) as ``METHOD:TARGET=FILE``. For a single
method its name may be left out: ``TARGET=FILE``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from safetensors.torch import save
from torch import Tensor

from otpt.backbones import read_tensors
from otpt.data.registered import shortened
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSystem
from otpt.evaluation.request import CALIBRATED
from otpt.files import Json, write_atomically
from otpt.methods import Method, Protocol, Task, compose
from otpt.prompts.learned import check_values
from otpt.records import describe_mistake
from otpt_medical.parts import ONLY

_NOTES = "otpt"
_METHOD = r"(?:baple|fpt)(?:\[[^\]]*\]|[^=:/\\\[])*"
_SPELLING = re.compile(rf"(?:(?P<method>{_METHOD})(?::(?P<target>\d+))?|(?P<number>\d+))=(?P<file>.+)", re.DOTALL)
"""``METHOD=FILE``, ``METHOD:TARGET=FILE`` or ``TARGET=FILE``."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class Notes(BaseModel):
    """Notes of ``otpt train`` in a file; a file of another program has none of them.

    Attributes:
        system: "baple" or "fpt".
        method: name of the method.
        target: target class of BAPLe.
        dataset: name of the training set.
        classes: class names in label order.
        backbone: fingerprint of the model.
        images: keys of the training images.
        patch: fields of BAPLe's :class:`otpt_medical.baple.Patch`.
        network: arguments of FPT's :class:`otpt_medical.fpt.FptNetwork`.
        frozen_size: input size of FPT's frozen ViT.
        recipe: numbers of the training.
    """

    model_config = ConfigDict(frozen=True)

    system: str = ""
    method: str = ""
    target: int | None = None
    dataset: str = ""
    classes: tuple[str, ...] | None = None
    backbone: str | None = None
    images: tuple[str, ...] = ()
    patch: dict[str, str | int | None] = Field(default_factory=dict)
    network: tuple[str, int, int, int, int] | None = None
    frozen_size: int | None = None
    recipe: dict[str, Json] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trained:
    """Content of a file.

    Attributes:
        path: path of the file.
        tensors: tensors by name.
        notes: notes of ``otpt train``.
        method: method that it is for; "" if unknown.
        target: target class that it is for; None for FPT, or if unknown.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    notes: Notes
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
        tensors = {name: self.tensors[name].float() for name in names}
        check_values(self.path, tensors)
        return tensors

    def check(self, class_names: Sequence[str], fingerprint: str) -> None:
        """Raise ``OtptError`` if the file was trained for other classes or on another model."""
        classes, backbone = self.notes.classes, self.notes.backbone
        where = f"The file {str(self.path)!r} was trained"
        if classes is not None and classes != tuple(class_names):
            raise OtptError(
                f"{where} for the classes {shortened(classes)}; this data set has {shortened(class_names)}."
            )
        if backbone is not None and backbone != fingerprint:
            raise OtptError(f"{where} on another backbone (fingerprint {backbone}); this one is {fingerprint}.")


def write_trained(path: Path, tensors: Mapping[str, Tensor], notes: Notes) -> None:
    """Write tensors and notes."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(on_host, {_NOTES: notes.model_dump_json(exclude_defaults=True)}))


def read_trained(path: Path) -> Trained:
    """Read a file of :func:`write_trained`, or the checkpoint of another program; no code in it is run."""
    tensors, texts = read_tensors(path, what="trained network", ignore_objects=True)
    try:
        notes = Notes.model_validate_json(texts.get(_NOTES, "{}"))
    except ValidationError as error:
        raise OtptError(
            f"The notes in the file {str(path)!r} are damaged ({describe_mistake(error)}); retrain it."
        ) from None
    return Trained(path, tensors, notes, notes.method, notes.target)


@lru_cache(maxsize=32)
def _read_unchanged(path: Path, changed: int) -> Trained:
    """Read a file once per time of its last change."""
    return read_trained(path)


def read_trained_files(names: Sequence[str]) -> tuple[Trained, ...]:
    """Read files given as FILE, METHOD=FILE, METHOD:TARGET=FILE or TARGET=FILE."""
    files: list[Trained] = []
    for name in names:
        file = _read_named(name)
        if any((file.method, file.target) == (other.method, other.target) for other in files):
            raise OtptError(f"Two files were given for method {file.method!r} and target class {file.target}.")
        files.append(file)
    return tuple(files)


def _read_named(name: str) -> Trained:
    match = None if os.path.isfile(os.path.expanduser(name)) else _SPELLING.fullmatch(name)
    path = Path(match["file"] if match else name).expanduser()
    file = _read_unchanged(path, path.stat().st_mtime_ns if path.is_file() else 0)
    if match is None:
        return file
    target = match["target"] or match["number"]
    return replace(file, method=match["method"] or file.method, target=int(target) if target else file.target)


def join_files(value: object) -> object:
    """Return a list of files as one text with semicolons."""
    if isinstance(value, (list, tuple)):
        return ";".join(str(file) for file in value)
    return str(value) if isinstance(value, os.PathLike) else value


def trained_name(method: Method) -> str:
    """Return the name of a method without the inputs of its system, such as its files, and without "+calibrated".

    Networks trained with other weights have names such as ``baple+o-tpt[lambda=6]``.
    """

    def without_inputs(brackets: re.Match[str]) -> str:
        settings = brackets[1].split(",")
        kept = [item for item in settings if item.partition("=")[0].replace("-", "_") not in method.input_settings]
        return f"[{','.join(kept)}]" if kept else ""

    return _BRACKETS.sub(without_inputs, method.name.removesuffix(CALIBRATED))


class TrainedSystem(EvaluationSystem):
    """System with a network of ``otpt train``; its evaluation is deterministic."""

    only: ClassVar[Mapping[str, tuple[str, ...]]] = ONLY
    own_network: ClassVar[bool] = True

    trained: Annotated[str, BeforeValidator(join_files)] = Field(
        "", description="files of 'otpt train', separated by semicolons; those of other programs as METHOD:TARGET=FILE"
    )

    @cached_property
    def files(self) -> tuple[Trained, ...]:
        """The files of ``trained``."""
        return read_trained_files([name.strip() for name in self.trained.split(";") if name.strip()])

    def file_for(self, method: Method, target: int | None = None) -> Trained:
        """Return the file of a method and target class."""
        for file in self.files:
            if self.is_for(file, method) and file.target in (target, None):
                return replace(file, target=target)
        where = "" if target is None else f" with target class {target}"
        raise OtptError(
            f"Method {trained_name(method)!r}{where} needs a trained file: make it with 'otpt train {self.name}', and "
            "name it with --set trained=FILE."
        )

    @staticmethod
    def is_for(file: Trained, method: Method) -> bool:
        """Return whether a file is for a method; one without a name is for every method."""
        return file.method in (trained_name(method), "")

    def check_files(self, methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` if it is unknown which of several methods a file is for."""
        unnamed = [file for file in self.files if not file.method]
        if unnamed and len(methods) > 1:
            named = ", ".join(method.name for method in methods)
            raise OtptError(
                f"The file {str(unnamed[0].path)!r} does not say which of the methods {named} it is for; write "
                "METHOD=FILE, and for BAPLe METHOD:TARGET=FILE with the number of the target class."
            )

    def check_evaluation(self, seeds: Sequence[int], methods: Sequence[Method]) -> None:
        """Refuse seeds, and numbers of the training that differ from those of the methods' names."""
        if tuple(seeds) != (0,):
            raise OtptError(f"The evaluation of {methods[0].name} is deterministic and has no seeds; remove them.")
        for method in methods:
            if _is_changed(method):
                raise OtptError(
                    f"The weights or steps of {method.name!r} were set, but {self.name} tunes nothing in an "
                    f"evaluation; give them to 'otpt train {self.name}'."
                )

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """Return the digest of the method's file."""
        return {"trained": self.file_for(method).digest}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """Return the training images of each file."""
        return self.training_images(self.files)

    def training_images(self, files: Iterable[Trained]) -> dict[str, Sequence[str]]:
        """Return the training images of files by what was learned from them."""
        images: dict[str, Sequence[str]] = {}
        for file in files:
            where = "" if file.target is None else f" with target class {file.target}"
            images[f"{file.method or self.name!r}{where}"] = file.notes.images
        return images


def _is_changed(method: Method) -> bool:
    """Return whether the numbers of a method differ from those of its name."""
    try:
        named = compose(trained_name(method))
    except OtptError:  # a method of a file, whose name says nothing about its numbers
        return False
    same_steps = replace(method, name=named.name, settings={}) == replace(named, settings={})
    return not same_steps or method.numbers != named.numbers
