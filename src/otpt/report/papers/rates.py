"""Seconds per image: as measured by earlier runs in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically

_FILE = "rates.json"


class Rates:
    """The rates known in a folder of runs."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: dict[str, dict[str, float]] = self._read()

    def seconds(self, backbone: str, group: str, device: str) -> float | None:
        """The measured rate of this group of runs; None if none was measured."""
        known = self._known.get(_key(backbone, group, device))
        return None if known is None else known["seconds"] / known["images"]

    def add(self, backbone: str, group: str, device: str, *, images: int, seconds: float) -> None:
        """Remember what a run took for images that it predicted."""
        known = self._known.setdefault(_key(backbone, group, device), {"images": 0, "seconds": 0.0})
        known["images"] += images
        known["seconds"] += seconds
        write_atomically(self._path, as_json(self._known))

    def _read(self) -> dict[str, dict[str, float]]:
        if not self._path.exists():
            return {}
        value: Any = read_json(self._path, "list of measured rates")
        try:
            return {
                str(key): {"images": int(known["images"]), "seconds": float(known["seconds"])}
                for key, known in value.items()
                if int(known["images"]) > 0
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise OtptError(f"The list of measured rates {str(self._path)!r} is damaged; delete it.") from None


def _key(backbone: str, group: str, device: str) -> str:
    return f"{backbone} {group} {device}"
