"""``otpt methods``: the parts of methods' names, axis by axis, and what the published names are made of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from otpt.cli.options.methods import add_plugin_option, load_plugins
from otpt.cli.terminal import Column, print_columns

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.methods.names import Part

_WIDTH = 120  # of a file or a pipe; sentences of any length would be one line each
_QUESTIONS = {
    "init": "init: what is the initial prompt? (default: words, 'a photo of a')",
    "adapt": "adapt: how do the views of an image change the text features? (default: not at all)",
    "calibrate": "calibrate: how are logits rescaled? (default: not at all)",
    "aggregate": "aggregate: which views decide, and how? (default: the clean view)",
    "gate": "gate: adapt this image, or keep zero-shot? (default: adapt)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``methods``."""
    parser.description = (
        "List the parts that names of methods are made of. A name is parts joined by '+', at most one per axis; those "
        "that tune the context may be joined with each other: coop+o-tpt, tpt+sals, o-tpt+c-tpt."
    )
    parser.add_argument("file", nargs="?", help="list the methods of a TOML file instead")
    parser.add_argument("--json", action="store_true", help="published methods with all numbers, as one JSON object")
    add_plugin_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the methods."""
    from otpt.methods import field_methods, known_parts, load_methods, published_methods

    load_plugins(options)
    if options.json:
        methods = load_methods(options.file) if options.file else {**published_methods(), **field_methods()}
        print(json.dumps({name: _as_data(method) for name, method in methods.items()}, indent=2, ensure_ascii=False))
    elif options.file:
        own = load_methods(options.file)
        _print([(name, _weights(method.objectives), _said(method)) for name, method in own.items()], "method")
    else:
        for axis, question in _QUESTIONS.items():
            parts = [part for part in known_parts().values() if part.axis == axis]
            if parts:
                print(question)
                _print([(part.name, _weights(part.objectives), _said(part)) for part in parts], "part")
                print()
        print("Names of the paper's methods: " + ", ".join(published_methods()))
        print("Names of the field's other methods: " + ", ".join(field_methods()))
    return 0


def _print(rows: list[tuple[str, str, str]], first: str) -> None:
    titles = (first, "λ (fine-grained / shift)", "what it does")
    shown = [0, 1, 2] if any(weights for _, weights, _ in rows) else [0, 2]
    print_columns([Column(titles[i], [row[i] for row in rows], is_name=True) for i in shown], width=_WIDTH)


def _said(of: Part | Method) -> str:
    return f"{of.summary} Caution: {of.caution}" if of.caution else of.summary


def _weights(objectives: Mapping[str, Any]) -> str:
    parts = []
    for name, weight in objectives.items():
        if isinstance(weight, Mapping):
            parts.append(f"{name} {weight['fine-grained']:g} / {weight['shift']:g}")
        elif weight != 1:
            parts.append(f"{name} {weight:g}")
    return ", ".join(parts)


def _as_data(method: Method) -> dict[str, Any]:
    values = {key: getattr(method, key) for key in method.__dataclass_fields__ if key != "name"}
    values["objectives"] = {name: _plain(weight) for name, weight in method.objectives.items()}
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
