"""``otpt models``: list the backbones and how to name them."""

from __future__ import annotations

import argparse
import json

from otpt.cli.terminal import Column, print_columns

_WIDTH = 120  # of a file or a pipe


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``models``."""
    parser.description = "List the values of --backbone."
    parser.add_argument("--json", action="store_true", help="as a JSON array")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the backbones."""
    from otpt.backbones import list_models

    entries = list_models()
    if options.json:
        rows = [{"name": entry.name, "description": entry.description} for entry in entries]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    columns = [
        Column("--backbone", [entry.name for entry in entries], is_name=True),
        Column("what it is", [entry.description for entry in entries], is_name=True),
    ]
    print_columns(columns, width=_WIDTH)
    return 0
