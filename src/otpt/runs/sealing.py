"""The file of a run's configuration: JSON with a checksum, so that a changed digit never becomes another number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.files import as_json, read_json
from otpt.runs.format import FORMAT
from otpt.runs.growing import KEYS

_CHECKSUM = "checksum"


def sealed(config: Mapping[str, Any]) -> bytes:
    """The bytes of the file."""
    return as_json({**config, _CHECKSUM: _checksum(config)})


def read_sealed(path: Path, folder: str) -> dict[str, Any]:
    """The configuration in a file. Runs of earlier versions have no checksum, and are read without."""
    config: dict[str, Any] = read_json(path, "run configuration")
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise OtptError(
            f"The run {folder!r} has another format than this version of otpt reads ({FORMAT}); make it again "
            "in another folder, or read it with the version that made it."
        )
    checksum = config.pop(_CHECKSUM, None)
    if set(config) - KEYS or checksum not in (None, _checksum(config)):
        raise OtptError(
            f"The run configuration {str(path)!r} is damaged: its checksum is wrong; take it from a backup, or make "
            "the run again in another folder."
        )
    return config


def _checksum(config: Mapping[str, Any]) -> str:
    """Of the values, however the file is laid out."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
