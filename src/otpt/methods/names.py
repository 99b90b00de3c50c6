"""Method names (parts joined by "+", with settings in brackets) and TOML files of methods."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

from otpt.arguments import checked
from otpt.errors import OtptError, cannot_read, unknown
from otpt.methods.method import Method
from otpt.plugins import is_registered, load_installed_plugins, restorable
from otpt.prompts import template_datasets
from otpt.records import Frozen
from otpt.registry import (
    AXES,
    CONTEXT,
    NONE,
    OBJECTIVES,
    PARTS,
    TEXTS,
    Part,
    Weight,
    listed_datasets,
    make_part,
)

_IN_FILE = re.compile(r"(.*?\.toml)(?::([^\[\]]*))?(?:\[(.*)\])?", re.DOTALL)
"""``FILE.toml``, ``FILE.toml:METHOD`` or ``FILE.toml:METHOD[SETTING=VALUE]``."""
_PART = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", re.DOTALL)
_PLUS = re.compile(r"\+(?![^\[]*\])")
"""A plus outside brackets; numbers may contain one, as in ``[lambda=1e+2]``."""

_NAMES: dict[str, list[str]] = restorable({"parts": [], "published": [], "field": []})
"""Registered names in order of registration."""
_make_method: Callable[..., Method] = Method
"""The constructor for fields from tables, which it validates."""


class MethodTables(Frozen):
    """Named parts and methods, as in ``methods.toml``.

    Attributes:
        parts: fields of :class:`otpt.registry.Part` and :class:`Method`, by name of the part.
        published: names of methods in the O-TPT paper.
        field: names of other published methods.
    """

    parts: Mapping[str, Mapping[str, object]]
    published: tuple[str, ...] = ()
    field: tuple[str, ...] = ()


def _named_part(name: str, table: Mapping[str, object]) -> Part:
    """Create a part from ``methods.toml``; weights, source and caution default to its functions' values."""
    weights = table.get("objectives", {})
    if isinstance(weights, list):
        weights = {objective: OBJECTIVES[objective].weight for objective in weights}
    assert isinstance(weights, Mapping)
    functions = [PARTS[objective] for objective in weights if objective in PARTS]
    caution = " ".join(part.caution for part in functions if part.caution)
    defaults = {"source": functions[-1].source, "caution": caution} if functions else {}
    return make_part(name, {**defaults, **table, "objectives": weights})


def register_methods(table: Mapping[str, object]) -> None:
    """Add named parts and methods: a table as in ``methods.toml``, where only "parts" is required."""
    tables = MethodTables(**table)
    PARTS.update({name: _named_part(name, part) for name, part in tables.parts.items()})
    for key, added in (("parts", tables.parts), ("published", tables.published), ("field", tables.field)):
        names = _NAMES[key]
        _NAMES[key] = [*names, *(name for name in added if name not in names)]


register_methods(tomllib.loads(resources.files(__package__).joinpath("methods.toml").read_text(encoding="utf-8")))


def published_names() -> tuple[str, ...]:
    """Return the names of the methods in the O-TPT paper, including baselines and combinations."""
    load_installed_plugins("methods")
    return tuple(_NAMES["published"])


def field_names() -> tuple[str, ...]:
    """Return the names of the published methods that are not in the O-TPT paper."""
    load_installed_plugins("methods")
    return tuple(_NAMES["field"])


def published_methods() -> Mapping[str, Method]:
    """Return the methods in the O-TPT paper by name, including baselines and combinations."""
    return {name: compose(name) for name in published_names()}


def field_methods() -> Mapping[str, Method]:
    """Return the published methods that are not in the O-TPT paper, by name."""
    return {name: compose(name) for name in field_names()}


def check_dataset_name(name: str) -> None:
    """Raise an :class:`OtptError` for a data set without published templates and numbers."""
    names = set(template_datasets())
    for method in (*published_methods().values(), *field_methods().values()):
        names |= listed_datasets([*method.numbers.values(), method.learning_rate, *method.objectives.values()])
    if name not in names:
        raise unknown("data set with published templates or numbers", name, sorted(names))


def known_parts() -> Mapping[str, Part]:
    """Return all built-in and registered parts by name, ordered by axis."""
    load_installed_plugins("methods")
    named = [name for name in _NAMES["parts"] if name in PARTS]
    ordered = [*named, *(name for name in PARTS if name not in named)]
    return {name: PARTS[name] for axis in AXES for name in ordered if PARTS[name].axis == axis}


def compose(name: str) -> Method:
    """Compose a method from the parts of its name.

    >>> compose("coop+o-tpt+sals").calibrate
    'sals'
    >>> compose("O-TPT[lambda=6]").objectives["orthogonality"]
    6.0
    """
    named = [_split(text, name) for text in _PLUS.split(name)]
    name = "+".join(f"{part.name}[{brackets}]" if brackets else part.name for part, brackets in named)
    parts = [part for part, _ in named]
    if len(parts) > 1 or parts[0].needs:
        _check_parts(name, parts)
    values: dict[str, object] = {}
    objectives: dict[str, Weight] = {}
    settings: dict[str, object] = {}
    for part in parts:
        values |= part.values
        objectives |= part.objectives
        settings |= part.settings
    if values.get("adapt") == NONE:
        values["adapt"] = CONTEXT  # without objectives
    for part in parts:
        objectives = {part.rename.get(objective, objective): weight for objective, weight in objectives.items()}
        objectives = {objective: weight for objective, weight in objectives.items() if objective not in part.drop}
        objectives |= {objective: weight for objective, weight in part.weights.items() if objective in objectives}
    values["summary"] = " ".join(part.summary for part in parts)
    values["source"] = "; ".join(dict.fromkeys(part.source for part in parts if part.source))
    values["caution"] = " ".join(dict.fromkeys(part.caution for part in parts if part.caution))
    method = _make_method(name, objectives, **values, settings=settings)
    for part, brackets in named:
        if brackets:
            method = method.override(_settings(part, brackets, name))
    return method


def _split(text: str, name: str) -> tuple[Part, str]:
    """Split "mine[weight=20]" into the part and its settings."""
    match = _PART.fullmatch(text.strip())
    if match is None:
        raise OtptError(f"The method name {name!r} has misplaced brackets; expected a name such as 'o-tpt[lambda=6]'.")
    part = match[1].strip().lower()
    if is_registered(part, PARTS, "methods"):
        return PARTS[part], ",".join(_trimmed(item) for item in (match[2] or "").split(","))
    near = difflib.get_close_matches(part, PARTS, n=3, cutoff=0.5)
    hint = f" Did you mean: {', '.join(near)}?" if near else ""
    shown = f"method {part!r}" if text == name else f"part {part!r} of the method {name!r}"
    raise OtptError(f"Unknown {shown}.{hint} 'otpt methods' lists all parts; they are joined by '+'.")


def _trimmed(item: str) -> str:
    """Remove spaces around the name and the value of a setting; a path may contain spaces."""
    return "=".join(word.strip() for word in item.split("=", 1))


def _settings(part: Part, brackets: str, name: str) -> dict[str, str]:
    """Parse settings in brackets; ``weight`` refers to the objective of the part."""
    settings: dict[str, str] = {}
    for item in filter(None, brackets.split(",")):
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise OtptError(f"The method name {name!r} has {item!r} in brackets; expected settings such as lambda=6.")
        if key == "weight" and part.objectives:
            regularisers = [objective for objective in part.objectives if OBJECTIVES[objective].on == TEXTS]
            candidates = regularisers or list(part.objectives)
            key = candidates[0] if len(candidates) == 1 else key
        settings[key] = value
    return settings


def _check_parts(name: str, parts: Sequence[Part]) -> None:
    """Raise an ``OtptError`` for parts on the same axis, or for a part whose objective is missing."""

    def conflict(one: Part, other: Part, why: str) -> OtptError:
        return OtptError(f"The method {name!r} joins {one.name!r} and {other.name!r}, which conflict: {why}.")

    for i, part in enumerate(parts):
        for other in parts[:i]:
            if part.name == other.name:
                raise conflict(other, part, "a part is given once")
            both = [axis for axis in AXES if axis in part.values and axis in other.values]
            if both:
                raise conflict(other, part, f"both set {both[0]}")
    for part in parts:
        for other in parts:
            if part.objectives and other.values.get("adapt") == NONE:
                raise conflict(other, part, f"{other.name} adapts nothing")
            if part.needs and part.needs in other.drop:
                raise conflict(other, part, f"{other.name} removes the {part.needs}, which {part.name} needs")
        added = {objective for other in parts if other is not part for objective in other.objectives}
        if part.needs and not any(part.needs in (objective, OBJECTIVES[objective].on) for objective in added):
            such_as, what = ("o-tpt", "a regulariser") if part.needs == TEXTS else ("tpt", f"the {part.needs}")
            raise OtptError(
                f"The method {name!r} has {part.name!r}, which needs a method with {what}; join it with one, such as "
                f"'{such_as}+{part.name}'."
            )


@checked
def get_method(name: str | Method) -> Method:
    """Return a method by name (``o-tpt``, ``coop+o-tpt``) or file (``mine.toml``, ``mine.toml:gentle``), or unchanged.

    Example:
        >>> get_method("O-TPT[lambda=6]+mta").aggregate
        'mta'
    """
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
    path, inner, brackets = match.groups()
    methods = load_methods(path)
    if inner is None and len(methods) != 1:
        raise OtptError(f"{path} contains {len(methods)} methods ({', '.join(methods)}); select one with {path}:NAME.")
    inner = next(iter(methods)) if inner is None else inner
    if inner not in methods:
        raise unknown("method", inner, methods)
    if not brackets:
        return methods[inner]
    changed = methods[inner].override(_settings(Part(inner, "adapt"), brackets, name))
    return replace(changed, name=f"{inner}[{brackets}]")


@checked
def get_methods(names: Iterable[str | Method]) -> tuple[Method, ...]:
    """Return several distinct methods by name."""
    if isinstance(names, str):
        raise OtptError(f"The methods are the string {names!r}; expected a list of names, such as [{names!r}].")
    methods = tuple(get_method(name) for name in names)
    repeated = [name for name, times in Counter(method.name for method in methods).items() if times > 1]
    if repeated:
        raise OtptError(f"Method {repeated[0]!r} is given twice; remove one of them.")
    return methods


@checked
def load_methods(path: str | Path) -> Mapping[str, Method]:
    """Read the methods of a TOML file: one table per method, with the keys of :class:`Method`.

    ::

        [gentle]
        summary = "O-TPT with a third of the weight"
        objectives = { entropy = 1.0, orthogonality = { fine-grained = 6.0, shift = 1.0 } }

    Example:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "mine.toml"
        >>> _ = path.write_text("[gentle]\\nobjectives = { entropy = 1.0, orthogonality = 6.0 }")
        >>> list(load_methods(path))
        ['gentle']
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OtptError(f"The method file {str(path)!r} is not valid TOML: {error}.") from None
    except (OSError, ValueError) as error:
        raise cannot_read("method file", path, error) from None
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise OtptError(
            f"The method file {str(path)!r} contains no methods; expected one table per method, such as [my-method]."
        )
    return {name: method_of_table(name, table, str(path)) for name, table in tables.items()}


def method_of_table(name: str, table: Mapping[str, object], origin: str) -> Method:
    """Return a method from a table with the keys of :class:`Method`, in a file or in the settings."""
    values = {key.replace("-", "_"): value for key, value in table.items()}
    if len(values) < len(table):
        raise OtptError(f"{origin}: method {name!r} spells a key with both - and _; use one of them.")
    keys = [field.name for field in fields(Method) if field.name != "name"]
    for key in values:
        if key not in keys:
            raise unknown(f"key of {origin}: method {name!r}:", key, keys)
    try:
        return _make_method(name, **values)
    except OtptError as error:
        raise OtptError(f"{origin}: {error}") from None
