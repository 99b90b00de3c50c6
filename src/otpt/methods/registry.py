"""Methods by name: ours, and those of a user's TOML file of the same form."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, unknown
from otpt.methods.method import Method

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FIELDS = {
    "summary": str,
    "source": str,
    "objectives": dict,
    "calibration": str,
    "temperature": (int, float),
    "steps": int,
    "learning_rate": (int, float, dict),
    "weight_decay": (int, float),
    "selected": (int, float),
    "reference": str,
    "two_step": bool,
    "start": str,
    "condition": str,
    "system": str,
}


@cache
def builtin_methods() -> Mapping[str, Method]:
    """The methods that come with the package, in the order of their table."""
    text = resources.files(__package__).joinpath("methods.toml").read_text(encoding="utf-8")
    return _parse(text, "methods.toml")


def load_methods(path: str | Path) -> Mapping[str, Method]:
    """Methods of a TOML file: one table a method, its keys those of :class:`Method`.

    ::

        [gentle]
        summary = "O-TPT with a third of the weight"
        objectives = { entropy = 1.0, orthogonality = { fine-grained = 6.0, shift = 1.0 } }
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OtptError(f"Cannot read the method file {str(path)!r}: {_reason(error)}.") from None
    return _parse(text, str(path))


def get_method(name: str | Method, *, extra: Mapping[str, Method] | None = None) -> Method:
    """A method by name (``o-tpt``), by file (``mine.toml``, ``mine.toml:gentle``), or as it is."""
    if isinstance(name, Method):
        return name
    path, _, inner = name.partition(".toml")
    if _ and (not inner or inner.startswith(":")):
        found = load_methods(path + ".toml")
        if inner:
            return _pick(inner[1:], found)
        if len(found) != 1:
            raise OtptError(
                f"{path}.toml holds {len(found)} methods ({', '.join(found)}); say which, as {path}.toml:NAME."
            )
        return next(iter(found.values()))
    return _pick(name, {**builtin_methods(), **(extra or {})})


def get_methods(names: Iterable[str | Method]) -> tuple[Method, ...]:
    """Several methods by name, each once."""
    found = tuple(get_method(name) for name in names)
    repeated = [m.name for i, m in enumerate(found) if m.name in {other.name for other in found[:i]}]
    if repeated:
        raise OtptError(f"Method {repeated[0]!r} is given twice; each method is run once.")
    return found


def _pick(name: str, methods: Mapping[str, Method]) -> Method:
    if name not in methods:
        raise unknown("method", name, methods)
    return methods[name]


def _parse(text: str, origin: str) -> Mapping[str, Method]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OtptError(f"The method file {origin!r} is not valid TOML: {error}.") from None
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise OtptError(
            f"The method file {origin!r} holds no method; expected one table a method, such as [my-method]."
        )
    return {name: _method(name, table, origin) for name, table in tables.items()}


def _method(name: str, table: dict[str, Any], origin: str) -> Method:
    where = f"{origin}: method {name!r}"
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in given.items():
        if key not in _FIELDS:
            raise unknown(f"key of {where}:", key, _FIELDS)
        kind = _FIELDS[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):  # type: ignore[arg-type]
            raise OtptError(f"{where}: {key} is {value!r}; expected {_kind_name(kind)}.")
    weights = {f"weight of {objective}": weight for objective, weight in given.get("objectives", {}).items()}
    for what, weight in {**weights, "learning_rate": given.get("learning_rate", 0)}.items():
        for number in weight.values() if isinstance(weight, dict) else [weight]:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise OtptError(f"{where}: the {what} is {number!r}; expected a number.")
    try:
        return Method(name, **given)
    except OtptError as error:
        raise OtptError(f"{origin}: {error}") from None


def _kind_name(kind: Any) -> str:
    return {str: "a text", dict: "a table", int: "a whole number", bool: "true or false"}.get(kind, "a number")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "it is not UTF-8 text"
