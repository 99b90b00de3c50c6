"""Photographs that ship with the package; README.md names their authors and terms."""

from __future__ import annotations

from pathlib import Path

from otpt.errors import unknown

_FOLDER = Path(__file__).parent


def photograph(name: str) -> Path:
    """Return the path of a photograph that ships with the package.

    Args:
        name: "cat", "coffee" or "rocket".

    Raises:
        OtptError: for another name.

    Example:
        >>> photograph("cat").name
        'cat.jpg'
    """
    names = sorted(file.stem for file in _FOLDER.glob("*.jpg"))
    if name not in names:
        raise unknown("photograph", name, names)
    return _FOLDER / f"{name}.jpg"
