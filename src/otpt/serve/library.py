"""What requests may name: class lists and calibration files, read from folders when the service starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from otpt.calibration import Calibration, read_calibration
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError


def read_class_lists(folder: Path) -> Mapping[str, ClassList]:
    """``pets.txt`` → the class list "pets"; one class per line, settings in comments as :mod:`otpt.data.classes`."""
    return {path.stem: read_class_list(path) for path in _files(folder, ".txt", "class lists")}


def read_calibrations(folder: Path) -> Mapping[str, Calibration]:
    """``pets.json`` → the calibration "pets", as ``otpt calibrate`` wrote it."""
    return {path.stem: read_calibration(path) for path in _files(folder, ".json", "calibration files")}


def _files(folder: Path, suffix: str, what: str) -> list[Path]:
    if not folder.is_dir():
        raise OtptError(f"There is no folder {str(folder)!r} of {what}; expected one with files *{suffix}.")
    found = sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())
    if not found:
        raise OtptError(f"The folder {str(folder)!r} holds no {what}; expected files *{suffix}.")
    return found
