"""``otpt methods``: what there is, each in a line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otpt.methods import Method


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``methods``."""
    parser.description = "List the methods, with the weights of their objectives."
    parser.add_argument("file", nargs="?", help="a TOML file of your own methods, to list in place of ours")
    parser.add_argument("--json", action="store_true", help="everything about them, as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the methods."""
    from rich.console import Console
    from rich.table import Table

    from otpt.methods import builtin_methods, load_methods

    methods = load_methods(options.file) if options.file else builtin_methods()
    if options.json:
        print(json.dumps({name: _as_data(method) for name, method in methods.items()}, indent=2, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "λ (fine-grained / shift)", "what it does"):
        table.add_column(title, overflow="fold")
    for name, method in methods.items():
        table.add_row(name, _weights(method), method.summary)
    Console(highlight=False, markup=False).print(table)
    return 0


def _weights(method: Method) -> str:
    parts = []
    for name, weight in method.objectives.items():
        if isinstance(weight, Mapping):
            parts.append(f"{name} {weight['fine-grained']:g} / {weight['shift']:g}")
        elif weight != 1:
            parts.append(f"{name} {weight:g}")
    return ", ".join(parts)


def _as_data(method: Method) -> dict[str, Any]:
    weights = {name: _plain(weight) for name, weight in method.objectives.items()}
    others = (
        "calibration",
        "temperature",
        "steps",
        "learning_rate",
        "weight_decay",
        "selected",
        "reference",
        "two_step",
        "start",
        "condition",
        "system",
    )
    return {
        "summary": method.summary,
        "source": method.source,
        "objectives": weights,
        **{key: _plain(getattr(method, key)) for key in others},
    }


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
