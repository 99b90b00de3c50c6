"""``otpt cache info`` and ``otpt cache clear``: the feature cache on disk; and the options of commands that use it."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from otpt.cli.options.spellings import flag
from otpt.errors import OtptError
from otpt.features.cache import DEFAULT_SIZE, FeatureCache


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``cache``."""
    parser.description = "Show or empty the cache of image features."
    parser.add_argument("action", choices=("info", "clear"), help="show what it holds, or empty it")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_cache_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show or empty."""
    cache = FeatureCache(options.cache)
    info = cache.info() if options.action == "info" else cache.clear()
    if options.json:
        print(json.dumps({**asdict(info), "folder": str(info.folder)}))
        return 0
    size = f"{info.bytes / 1e9:.2f} GB" if info.bytes >= 1e8 else f"{info.bytes / 1e6:.2f} MB"
    what = "holds" if options.action == "info" else "was emptied of"
    contexts = f" and {info.contexts} contexts" if info.contexts else ""
    held = f"the features of {info.entries} images and {info.gradients} gradients{contexts}, {size}"
    print(f"The feature cache {str(info.folder)!r} {what} {held}.")
    return 0


def add_cache_option(parser: Any) -> None:
    """Where the feature cache is."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="feature cache (default: OTPT_CACHE, or the user's cache folder)"
    )


def add_cache_options(parser: Any) -> None:
    """Where the feature cache is, how large, and whether there is one: what :func:`chosen_cache` reads."""
    add_cache_option(parser)
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the feature cache")
    parser.add_argument("--cache-size", type=float, metavar="GB", help=f"its bound (default: {DEFAULT_SIZE / 1e9:g})")


def chosen_cache(options: argparse.Namespace) -> FeatureCache | None:
    """The feature cache that the options describe; None for none."""
    if options.no_cache:
        for name in ("cache", "cache_size"):
            if getattr(options, name) is not None:
                raise OtptError(f"{flag(name)} was given with --no-cache; expected one of them.")
        return None
    if options.cache_size is None:
        return FeatureCache(options.cache)
    if not 1e-9 <= options.cache_size < math.inf:
        raise OtptError(f"--cache-size was given {options.cache_size:g}; expected a number of GB above 0.")
    return FeatureCache(options.cache, max_bytes=round(options.cache_size * 1e9))
