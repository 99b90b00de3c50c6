"""Names of data sets and methods as files may be called."""

from __future__ import annotations

import re


def folder_name(name: str) -> str:
    """``emoji/food`` → ``emoji-food``; ``coop+o-tpt`` stays as it is."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.") or "data"
