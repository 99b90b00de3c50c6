"""Methods by name, and those of a user's TOML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, cannot_read, unknown
from otpt.files import parse_toml
from otpt.methods.method import Method
from otpt.methods.names.parts import compose, field_names, published_names

DEFAULT_METHOD = "confident-half"
"""Of the classifier, ``otpt predict`` and ``otpt calibrate``; chosen by the protocol of docs/default.md."""

_IN_FILE = re.compile(r"(.*?\.toml)(?::(.*))?", re.DOTALL)
"""``FILE.toml``, or ``FILE.toml:METHOD``."""

_FIELDS = {
    "summary": str,
    "source": str,
    "caution": str,
    "objectives": dict,
    "init": str,
    "adapt": str,
    "calibrate": str,
    "aggregate": str,
    "gate": str,
    "temperature": (int, float),
    "steps": int,
    "learning_rate": (int, float, dict),
    "weight_decay": (int, float),
    "selection_ratio": (int, float),
    "reference": str,
    "two_step": bool,
    "selection": str,
    "settings": dict,
    "condition": str,
    "views": int,
    "augmix": bool,
    "frozen_below": (int, float),
}


def published_methods() -> Mapping[str, Method]:
    """The methods of the paper and of those that it compares or combines O-TPT with, by name."""
    return {name: compose(name) for name in published_names()}


def field_methods() -> Mapping[str, Method]:
    """The field's other methods under their own names; any of their parts can be joined with others."""
    return {name: compose(name) for name in field_names()}


def load_methods(path: str | Path) -> Mapping[str, Method]:
    """Methods of a TOML file: one table per method, its keys those of :class:`Method`.

    ::

        [gentle]
        summary = "O-TPT with a third of the weight"
        objectives = { entropy = 1.0, orthogonality = { fine-grained = 6.0, shift = 1.0 } }
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise cannot_read("method file", path, error) from None
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise OtptError(f"The method file {str(path)!r} is not valid TOML: {error}.") from None
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise OtptError(
            f"The method file {str(path)!r} holds no method; expected one table per method, such as [my-method]."
        )
    return {name: _method(name, table, str(path)) for name, table in tables.items()}


def get_method(name: str | Method) -> Method:
    """A method by name (``o-tpt``, ``coop+o-tpt``), by file (``mine.toml``, ``mine.toml:gentle``), or as it is."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise OtptError(
            f"The method is a {type(name).__name__}; expected a name such as 'o-tpt', a TOML file, or a Method. (A "
            "tokenizer is given as tokenizer=, a transform or processor as preprocess=.)"
        )
    match = _IN_FILE.fullmatch(name)
    if match is None:
        return compose(name)
    path, inner = match.groups()
    found = load_methods(path)
    if inner is not None:
        if inner not in found:
            raise unknown("method", inner, found)
        return found[inner]
    if len(found) != 1:
        raise OtptError(f"{path} holds {len(found)} methods ({', '.join(found)}); say which, as {path}:NAME.")
    return next(iter(found.values()))


def get_methods(names: Iterable[str | Method]) -> tuple[Method, ...]:
    """Several methods by name, each once."""
    if isinstance(names, str):
        raise OtptError(f"The methods are the single text {names!r}; expected a list of names, such as [{names!r}].")
    found = tuple(get_method(name) for name in names)
    repeated = [m.name for i, m in enumerate(found) if m.name in {other.name for other in found[:i]}]
    if repeated:
        raise OtptError(f"Method {repeated[0]!r} is given twice; each method is run once.")
    return found


def _method(name: str, table: dict[str, Any], origin: str) -> Method:
    where = f"{origin}: method {name!r}"
    given = {key.replace("-", "_"): value for key, value in table.items()}
    if len(given) < len(table):
        both = next(key for key in table if "-" in key and key.replace("-", "_") in table)
        raise OtptError(f"{where}: {both} is given in two spellings, with - and with _; expected one of them.")
    for key, value in given.items():
        if key not in _FIELDS:
            raise unknown(f"key of {where}:", key, _FIELDS)
        kind = _FIELDS[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):  # type: ignore[arg-type]
            raise OtptError(f"{where}: {key} is {value!r}; expected {_kind_name(kind)}.")
    weights = {f"weight of {objective}": weight for objective, weight in given.get("objectives", {}).items()}
    weights |= {f"setting {setting}": number for setting, number in given.get("settings", {}).items()}
    for what, weight in {**weights, "learning_rate": given.get("learning_rate", 0)}.items():
        for number in weight.values() if isinstance(weight, dict) else [weight]:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise OtptError(f"{where}: the {what} is {number!r}; expected a number.")
    try:
        method = Method(name, **given)
    except OtptError as error:
        raise OtptError(f"{origin}: {error}") from None
    for setting in method.settings:
        if setting.replace("_", "-") not in method.known_settings:
            raise unknown(f"setting of {where}:", setting, method.known_settings)
    return method


def _kind_name(kind: Any) -> str:
    return {str: "a text", dict: "a table", int: "a whole number", bool: "true or false"}.get(kind, "a number")
