"""``otpt cache info`` and ``otpt cache clear``: the feature cache on disk."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from otpt.cli.evaluate import add_cache_option
from otpt.evaluation import FeatureCache


def add_command(commands: Any) -> None:
    """Register ``cache``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "cache", help="the feature cache", description="Show or empty the cache of image features."
    )
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
    held = f"the features of {info.entries} pictures and {info.gradients} gradients, {size}"
    print(f"The feature cache {str(info.folder)!r} {what} {held}.")
    return 0
