"""Download a data set with torchvision, if torchvision supports it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from otpt.data.registered.entry import DatasetEntry, builtin_entries
from otpt.errors import OtptError

_NO_DOWNLOAD = {
    "cars": "its original URL no longer exists",
    "imagenet": "access must be requested at image-net.org",
}
SPLIT_FILES = "the page DATASETS.md of github.com/KaiyangZhou/CoOp links to it"


def download_dataset(entry: DatasetEntry, root: Path) -> Path:
    """Download ``entry`` into ``root`` in torchvision's layout; returns the folder of its images.

    torchvision does not download the split file.
    """
    if not entry.torchvision:
        able = ", ".join(other.name for other in builtin_entries().values() if other.torchvision)
        why = _NO_DOWNLOAD.get(entry.name, "torchvision does not have it")
        raise OtptError(f"{entry.name} cannot be downloaded: {why}. What can be: {able}.")
    maker: Any = getattr(importlib.import_module("torchvision.datasets"), entry.torchvision)
    root = root.expanduser()
    folder = root / next(layout.folder for layout in entry.layouts if "torchvision" in layout.style)
    try:
        root.mkdir(parents=True, exist_ok=True)
        maker(root, download=True)
    except ImportError as error:
        # Some sets' constructors read labels with scipy after the download; we need the images only.
        if not folder.is_dir():
            raise OtptError(f"{entry.name} cannot be downloaded: {error}.") from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OtptError(f"{entry.name} cannot be downloaded into {str(root)!r}: {reason}.") from None
    if not folder.is_dir():
        raise OtptError(f"{entry.name} was downloaded into {str(root)!r}, but not to {str(folder)!r}; look there.")
    return folder
