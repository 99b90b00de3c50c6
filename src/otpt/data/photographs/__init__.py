"""Photographs that ship with the package; README.md names their authors and terms."""

from __future__ import annotations

from pathlib import Path

from otpt.arguments import checked
from otpt.errors import unknown

_FOLDER = Path(__file__).parent

PHOTOGRAPH_CLASSES = {
    "cat": ("cat", "dog", "fox", "rabbit", "tiger", "lion", "horse", "bear", "raccoon", "squirrel"),
    "coffee": (
        "cup of coffee", "cup of tea", "bowl of soup", "glass of beer", "plate", "teapot", "spoon", "cake",
        "bottle of wine", "ice cream",
    ),
    "rocket": (
        "rocket", "airplane", "helicopter", "lighthouse", "tower", "fireworks", "volcano", "ship", "candle", "crane",
    ),
}  # fmt: skip
"""Ten plausible classes of each photograph; the first is correct."""


@checked
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
