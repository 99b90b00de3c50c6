"""Names and tags of open_clip's models without importing open_clip.

``python -m otpt.backbones.sources.open_clip_names`` writes ``open_clip_names.json`` from the installed open_clip. The
file is used as long as that version is installed; with any other, or once open_clip has been imported, its own lists
are asked.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
_DISTRIBUTION = "open_clip_torch"


@dataclass(frozen=True)
class OpenClipNames:
    """``architectures``: all names. ``tags``: of those with published weights, in open_clip's order."""

    architectures: tuple[str, ...]
    tags: dict[str, tuple[str, ...]]


def open_clip_names() -> OpenClipNames:
    """What the installed open_clip offers."""
    if "open_clip" not in sys.modules:
        stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
        if stored["version"] == _installed_version():
            tags = {name: tuple(own) for name, own in stored["tags"].items()}
            return OpenClipNames(tuple(stored["architectures"]), tags)
    return ask_open_clip()


def ask_open_clip() -> OpenClipNames:
    """The same from open_clip itself, which takes seconds to import."""
    import open_clip

    tags: dict[str, tuple[str, ...]] = {}
    for name, tag in open_clip.list_pretrained():
        tags[name] = (*tags.get(name, ()), tag)
    return OpenClipNames(tuple(open_clip.list_models()), tags)


def write_names(file: Path = FILE) -> None:
    """Write the lists of the installed open_clip."""
    names = ask_open_clip()
    stored = {"version": _installed_version(), "architectures": names.architectures, "tags": names.tags}
    file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _installed_version() -> str | None:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    write_names()
