"""``otpt models``: list the backbones and how to name them."""

from __future__ import annotations

import argparse
import json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``models``."""
    parser.description = "List the values of --backbone."
    parser.add_argument("--json", action="store_true", help="as a JSON array")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the backbones."""
    from rich.console import Console
    from rich.table import Table

    from otpt.backbones import list_models

    entries = list_models()
    if options.json:
        rows = [{"name": entry.name, "description": entry.description} for entry in entries]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("--backbone", overflow="fold")
    table.add_column("what it is", overflow="fold")
    for entry in entries:
        table.add_row(entry.name, entry.description)
    Console(highlight=False, markup=False).print(table)
    return 0
