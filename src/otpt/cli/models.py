"""``otpt models``: the backbones."""

from __future__ import annotations

from otpt.cli import options as o
from otpt.cli.terminal import print_json, print_table


def models(*, json: o.Json = False) -> int:
    """List the values of --backbone."""
    from otpt.backbones import list_models

    entries = list_models()
    if json:
        print_json([{"name": entry.name, "description": entry.description} for entry in entries])
    else:
        rows = [(entry.name, entry.description) for entry in entries]
        print_table(("--backbone", "what it is"), rows, names=2, width=120)
    return 0
