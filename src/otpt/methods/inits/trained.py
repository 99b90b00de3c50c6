"""Which files of ``otpt train`` an evaluation uses: each says itself which method, target and classes it is for.

A file of another program does not say so; it is written ``METHOD=FILE``, and for BAPLe ``METHOD:TARGET=FILE`` with the
number of the target class (0, 1, …).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otpt.errors import OtptError
from otpt.methods.inits.trained_files import Trained, read_trained

_GIVEN = re.compile(r"(?P<method>(?:baple|fpt)[^=:/\\]*)(?::(?P<target>\d+))?=(?P<file>.+)", re.DOTALL)


@dataclass(frozen=True)
class TrainedFile:
    """A file with what it is for; ``target``: number of BAPLe's target class, None for others."""

    method: str
    target: int | None
    content: Trained

    def check(self, class_names: Sequence[str], fingerprint: str) -> None:
        """``OtptError`` if the file was trained for other classes or on another model."""
        where = f"The file {str(self.content.path)!r} was trained"
        notes = self.content.notes
        classes = notes.get("classes")
        if classes is not None and list(classes) != list(class_names):
            raise OtptError(f"{where} for the classes {_some(classes)}; this data set has {_some(class_names)}.")
        if notes.get("backbone", fingerprint) != fingerprint:
            raise OtptError(
                f"{where} on another backbone (fingerprint {notes['backbone']}); this one is {fingerprint}."
            )


def read_trained_files(given: Sequence[str]) -> tuple[TrainedFile, ...]:
    """The files that were named; see the module."""
    found: list[TrainedFile] = []
    for each in given:
        match = _GIVEN.fullmatch(each)
        path = Path(match["file"] if match else each).expanduser()
        content = read_trained(path)
        method = match["method"] if match else str(content.notes.get("method", ""))
        given_target = match["target"] if match else None
        target = content.notes.get("target") if given_target is None else int(given_target)
        if not method:
            raise OtptError(
                f"The file {str(path)!r} does not say which method it is for; write METHOD=FILE, and for BAPLe "
                "METHOD:TARGET=FILE with the number of the target class."
            )
        file = TrainedFile(method, target, content)
        if any((file.method, file.target) == (other.method, other.target) for other in found):
            aim = "" if target is None else f" and target class {target}"
            raise OtptError(f"Two files were given for method {file.method!r}{aim}; expected one.")
        found.append(file)
    return tuple(found)


def file_for(files: Sequence[TrainedFile], method: str, target: int | None = None) -> TrainedFile:
    """The file of a method (and target)."""
    for file in files:
        if (file.method, file.target) == (method, target):
            return file
    aim = "" if target is None else f" with target class {target}"
    system = next((part for part in method.split("+") if part in ("baple", "fpt")), method)
    raise OtptError(
        f"Method {method!r}{aim} needs what was trained for it: make it with 'otpt train {system}', and give it with "
        "--trained FILE."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" … ({len(names)} in all)" if len(names) > 4 else "")
