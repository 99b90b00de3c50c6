"""``otpt methods``: the parts of method names, and the published methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from otpt.cli import options as o
from otpt.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from otpt.methods import Method, Part

_AXES = {
    "init": "init: the initial prompt (default: words, 'a photo of a')",
    "adapt": "adapt: how the views of an image change the text features (default: not at all)",
    "calibrate": "calibrate: how logits are rescaled (default: not at all)",
    "aggregate": "aggregate: which views decide, and how (default: the clean view)",
    "gate": "gate: whether an image is adapted (default: always)",
}


def methods(
    file: Annotated[str | None, o.option("list the methods of a TOML file instead", metavar="FILE")] = None,
    /,
    *,
    json: o.Json = False,
    plugin: o.Plugins = (),
) -> int:
    """List the parts of method names. A name is parts joined by '+', at most one per axis; those that tune the context
    may be joined with each other: coop+o-tpt, tpt+sals, o-tpt+c-tpt."""
    from otpt.methods import field_methods, known_parts, load_methods, load_plugin, published_methods

    for path in plugin:
        load_plugin(path)
    if json:
        found = load_methods(file) if file else {**published_methods(), **field_methods()}
        print_json({name: _plain_method(method) for name, method in found.items()})
    elif file:
        _print(dict(load_methods(file)), "method")
    else:
        for axis, title in _AXES.items():
            parts = {part.name: part for part in known_parts().values() if part.axis == axis}
            if parts:
                print(title)
                _print(parts, "part")
                print()
        print(f"The paper's methods: {', '.join(published_methods())}")
        print(f"Other published methods: {', '.join(field_methods())}")
    return 0


def _print(found: Mapping[str, Method | Part], title: str) -> None:
    rows = []
    for name, each in found.items():
        caution = f" Caution: {each.caution}" if each.caution else ""
        rows.append((name, _weights(each.objectives), f"{each.summary}{caution}"))
    if any(weights for _, weights, _ in rows):
        print_table((title, "λ (fine-grained / shift)", "what it does"), rows, names=3, width=120)
    else:
        print_table((title, "what it does"), [(name, text) for name, _, text in rows], names=2, width=120)


def _weights(objectives: Mapping[str, Any]) -> str:
    parts = []
    for name, weight in objectives.items():
        if isinstance(weight, Mapping):
            parts.append(f"{name} {weight['fine-grained']:g} / {weight['shift']:g}")
        elif weight != 1:
            parts.append(f"{name} {weight:g}")
    return ", ".join(parts)


def _plain_method(method: Method) -> dict[str, Any]:
    values = {name: getattr(method, name) for name in method.__dataclass_fields__ if name != "name"}
    values["objectives"] = {name: _plain(weight) for name, weight in method.objectives.items()}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
