"""Seconds per image: as measured by earlier runs in the same folder, or as the documentation has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically

_FILE = "rates.json"

_DOCUMENTED = {
    # (seconds for 64 views, for each class, for each class and further method); docs/performance.md, 2 CPU cores
    ("ViT-B/16", "cpu"): (9.25, 0.0042, 0.0019),
    ("RN50", "cpu"): (3.26, 0.0035, 0.0020),
    # published for the official scripts on an A6000
    ("ViT-B/16", "cuda"): (0.26, 0.0, 0.0),
}


@dataclass(frozen=True)
class Rate:
    """Seconds per image under one seed."""

    seconds: float
    measured: bool


class Rates:
    """The rates known in a folder of runs."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: dict[str, dict[str, float]] = self._read()

    def seconds(self, backbone: str, group: str, device: str, *, classes: int, methods: int) -> Rate | None:
        """The measured rate of this group of runs, else the documented one, else None."""
        known = self._known.get(_key(backbone, group, device))
        if known is not None:
            return Rate(known["seconds"] / known["images"], measured=True)
        documented = _DOCUMENTED.get((backbone, device))
        if documented is None:
            return None
        views, a_class, further = documented
        return Rate(views + classes * (a_class + further * (methods - 1)), measured=False)

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
