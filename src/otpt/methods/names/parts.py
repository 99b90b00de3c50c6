"""Names of methods: parts joined by "+", each known to one axis, in any order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from otpt.calibration.registry import CALIBRATIONS
from otpt.errors import OtptError
from otpt.methods.axes import ADAPTATIONS, AGGREGATIONS, CLEAN, GATES, NONE, TEMPLATES
from otpt.methods.method import CONTEXT, Method, Weight
from otpt.methods.names.toml import methods_table
from otpt.objectives.registry import OBJECTIVES, TEXTS

AXES = ("init", "adapt", "calibrate", "aggregate", "gate")


@dataclass(frozen=True)
class Part:
    """What a part of a name says; see the head of ``methods.toml``."""

    name: str
    axis: str
    summary: str = ""
    source: str = ""
    caution: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    objectives: Mapping[str, Weight] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    needs: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[str, ...]:
        """Its own axis first, then others that it sets a value on as well."""
        return (self.axis, *(axis for axis in AXES if axis in self.values and axis != self.axis))

    @property
    def is_context_step(self) -> bool:
        """Whether it adds objectives to steps on the context, which several parts may do."""
        return self.axis == "adapt" and "adapt" not in self.values


_OWN = ("axis", "summary", "source", "caution", "objectives", "weights", "rename", "drop", "needs")
_SETTINGS = ("settings", "settings_from")


@cache
def _ours() -> Mapping[str, Part]:
    tables = methods_table()["parts"]
    return {
        name: Part(
            name,
            **{key: value for key, value in table.items() if key in _OWN},
            values={key: value for key, value in table.items() if key not in (*_OWN, *_SETTINGS)},
            settings=_settings(name, tables),
        )
        for name, table in tables.items()
    }


def _settings(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A part's own settings, beside those of the part that it takes them from."""
    others = tables[name].get("settings_from")
    return {**(_settings(others, tables) if others else {}), **tables[name].get("settings", {})}


def known_parts() -> Mapping[str, Part]:
    """All parts by name: those of ``methods.toml``, then functions of the user's own."""
    found = dict(_ours())
    for name, each in [(name, each) for name, each in OBJECTIVES.items() if each.digest]:
        if name in found:
            del OBJECTIVES[name]
            raise _taken("objective", found[name])
        found[name] = Part(name, "adapt", each.summary, objectives={name: each.weight})
    registries = {"adapt": ADAPTATIONS, "calibrate": CALIBRATIONS, "aggregate": AGGREGATIONS, "gate": GATES}
    for axis, registry in registries.items():
        for name, value in [(name, value) for name, value in registry.items() if value.digest]:
            if name in found:
                del registry[name]
                raise _taken(f"function on the axis {axis!r}", found[name])
            found[name] = Part(name, axis, value.summary, values={axis: name})
    return found


def _taken(what: str, part: Part) -> OtptError:
    """Two parts of one name could not be told apart; the one that came last was taken out again."""
    return OtptError(
        f"Your {what} has the name {part.name!r}, which is a part on the axis {part.axis!r} already; give it another "
        "name."
    )


def published_names() -> tuple[str, ...]:
    """Names of the methods of the paper and of those that it compares or combines O-TPT with."""
    return tuple(methods_table()["published"])


def field_names() -> tuple[str, ...]:
    """Names of the field's other methods."""
    return tuple(methods_table()["field"])


def compose(name: str) -> Method:
    """The method that a name describes.

    >>> compose("coop+o-tpt+sals").calibrate
    'sals'
    """
    parts = [_find(part, name) for part in name.split("+")]
    _refuse_conflicts(name, parts)
    values: dict[str, Any] = {}
    objectives: dict[str, Weight] = {}
    settings: dict[str, Any] = {}
    for part in parts:
        values |= part.values
        objectives |= part.objectives
        settings |= part.settings
    if values.get("adapt") == NONE:
        values["adapt"] = CONTEXT  # without objectives
    for part in parts:
        objectives = {part.rename.get(each, each): weight for each, weight in objectives.items()}
        objectives = {each: weight for each, weight in objectives.items() if each not in part.drop}
        objectives |= {each: weight for each, weight in part.weights.items() if each in objectives}
    values["summary"] = " ".join(part.summary for part in parts)
    values["source"] = "; ".join(dict.fromkeys(part.source for part in parts if part.source))
    values["caution"] = " ".join(part.caution for part in parts if part.caution)
    return Method(name, objectives, **values, settings=settings)


def _find(part: str, name: str) -> Part:
    parts = known_parts()
    if part in parts:
        return parts[part]
    near = difflib.get_close_matches(part.lower(), parts, n=3, cutoff=0.5)
    hint = f" Did you mean: {', '.join(f'{each} ({parts[each].axis})' for each in near)}?" if near else ""
    given = f"method {part!r}" if part == name else f"part {part!r} of the method {name!r}"
    listed = "; ".join(f"{axis}: {', '.join(own)}" for axis in AXES if (own := _on(axis, parts)))
    raise OtptError(f"Unknown {given}.{hint} Available, to be joined by '+': {listed}.")


def _on(axis: str, parts: Mapping[str, Part]) -> list[str]:
    return [name for name, part in parts.items() if part.axis == axis]


def _refuse_conflicts(name: str, parts: Sequence[Part]) -> None:
    """``OtptError`` that names the two parts which do not go together."""
    for i, part in enumerate(parts):
        for other in parts[:i]:
            reason = _conflict(other, part) or _conflict(part, other)
            if reason:
                raise OtptError(
                    f"The method {name!r} joins {other.name!r} and {part.name!r}, which conflict: {reason}."
                )
    for part in parts:
        if part.needs and not any(_brings(each, part.needs) for each in parts):
            what, such_as = (f"that minimises the {part.needs}", "tpt")
            if part.needs == TEXTS:
                what, such_as = ("with a regulariser", "o-tpt")
            raise OtptError(
                f"The method {name!r} has {part.name!r}, which needs a method {what}; join it with "
                f"one, such as '{such_as}+{part.name}'."
            )
        for other in parts:
            if part.needs in other.drop:
                raise OtptError(
                    f"The method {name!r} joins {other.name!r} and {part.name!r}, which conflict: {other.name} leaves "
                    f"out the {part.needs}, which {part.name} needs."
                )
        adapts = _only(part).get("adapt", ())
        if adapts and not any(each.values.get("adapt") in adapts for each in parts):
            raise OtptError(
                f"The method {name!r} has {part.name!r}, which goes with {' or '.join(adapts)} only; join it with it, "
                f"as '{adapts[0]}+{part.name}'."
            )


def _brings(part: Part, needed: str) -> bool:
    """Whether it has the objective of this name, or one of this kind."""
    return any(needed in (name, OBJECTIVES[name].on) for name in part.objectives)


def _only(part: Part) -> Mapping[str, tuple[str, ...]]:
    """By axis, the values that go with what a part sets; two values on one axis are a conflict of their own."""
    axes = {"adapt": ADAPTATIONS, "calibrate": CALIBRATIONS, "aggregate": AGGREGATIONS}
    value = axes.get(part.axis, {}).get(part.values.get(part.axis, ""))
    return {} if value is None else value.only


def _goes_with(axis: str, allowed: Sequence[str]) -> str:
    chosen = [value for value in allowed if value not in (NONE, CLEAN, "words")]
    return f"goes with {' or '.join(chosen)} only" if chosen else f"leaves no choice of {axis}"


def _conflict(part: Part, other: Part) -> str:
    if part.name == other.name:
        return "a part is given once"
    for axis in other.axes:
        allowed = _only(part).get(axis)
        if allowed is not None and axis in other.values and other.values[axis] not in allowed:
            return f"{part.name} {_goes_with(axis, allowed)}"
    for axis in part.axes:
        if axis in other.axes and axis != "adapt":
            return f"both say how to {axis}" if axis != "init" else "both are initial prompts"
    if part.values.get("init") in TEMPLATES and other.is_context_step:
        return f"{part.name} leaves no context to tune"
    if part.axis != "adapt" or other.axis != "adapt":
        return ""
    if part.is_context_step and other.is_context_step:
        return ""
    if part.is_context_step:
        return "" if other.drop or other.objectives else f"{other.name} takes no steps on the context"
    return "both are adaptations" if not other.is_context_step else ""
