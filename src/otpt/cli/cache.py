"""``otpt cache info|clear``: the cache of image features."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from otpt.cli import options as o
from otpt.cli.terminal import print_json


def cache(
    action: Annotated[Literal["info", "clear"], o.option("show what it holds, or empty it")],
    /,
    *,
    json: o.Json = False,
    cache: Annotated[Path | None, o.option("the cache (default: OTPT_CACHE, or the user's)", metavar="DIR")] = None,
) -> int:
    """Show or empty the cache of image features."""
    from otpt.features.cache import FeatureCache

    found = FeatureCache(cache)
    info = found.info() if action == "info" else found.clear()
    if json:
        print_json({**asdict(info), "folder": str(info.folder)})
        return 0
    size = f"{info.bytes / 1e9:.2f} GB" if info.bytes >= 1e8 else f"{info.bytes / 1e6:.2f} MB"
    verb = "holds" if action == "info" else "was emptied of"
    contexts = f" and {info.contexts} contexts" if info.contexts else ""
    print(
        f"The feature cache {str(info.folder)!r} {verb} the features of {info.entries} images and {info.gradients} "
        f"gradients{contexts}, {size}."
    )
    return 0
