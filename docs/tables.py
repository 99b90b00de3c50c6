"""Tables of parts, objectives and methods in the documentation, generated from the registry.

    python docs/tables.py README.md docs/methods.md docs/reference/methods.md --check     # fail if one is outdated
    python docs/tables.py README.md docs/methods.md docs/reference/methods.md --write     # update them

A page has a table between the lines ``<!-- table: NAME -->`` and ``<!-- end of table -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from otpt.errors import unknown
from otpt.methods import field_methods, known_parts, published_methods
from otpt.registry import (
    ADAPTATIONS,
    AGGREGATIONS,
    CALIBRATIONS,
    FAMILIES,
    GATES,
    INITS,
    OBJECTIVES,
    QUESTIONS,
    SYSTEMS,
    VIEWS,
    Part,
    Setting,
    Weight,
)

_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def axes_table() -> str:
    """One row per axis, with the names of its parts."""
    parts = known_parts().values()
    rows = [
        (axis, question, ", ".join(_code(part.name) for part in parts if part.axis == axis))
        for axis, question in QUESTIONS.items()
    ]
    return _markdown(("axis", "question", "parts"), rows)


def parts_table() -> str:
    """A section per axis with one row per part."""
    sections = []
    for axis, question in QUESTIONS.items():
        rows = [
            (_code(part.name), _with_source(part), _settings(_numbers(part)))
            for part in known_parts().values()
            if part.axis == axis
        ]
        if axis != "objective":
            sections.append(f"### {axis}\n\n{question}\n\n{_markdown(('part', 'what it does', 'settings'), rows)}")
    return "\n".join(sections)


def objectives_table() -> str:
    """One row per objective."""
    rows = []
    for part in known_parts().values():
        if part.axis == "objective":
            objective = OBJECTIVES[part.name]
            of = "views" if objective.on == VIEWS else "texts"
            rows.append((_code(part.name), of, _number(objective.weight), _with_source(part)))
    return _markdown(("objective", "of", "weight", "what it is"), rows)


def methods_table() -> str:
    """One row per named method, with the weights of its objectives."""
    rows = [
        (_code(each.name), _weights(each.objectives), _settings({**each.defaults, **each.settings}), each.source)
        for each in [*published_methods().values(), *field_methods().values()]
    ]
    return _markdown(("method", "weights (fine-grained / shift)", "settings", "source"), rows)


def _numbers(part: Part) -> dict[str, object]:
    """Return the settings of a part: of its functions, with their published numbers, and of its init or system."""
    axes = {"adapt": ADAPTATIONS, "calibrate": CALIBRATIONS, "aggregate": AGGREGATIONS, "gate": GATES}
    defaults: dict[str, object] = {}
    for name in part.objectives:
        defaults |= _defaults(OBJECTIVES[name].settings)
    for axis, value in part.values.items():
        if axis in axes and value in axes[axis]:
            defaults |= _defaults(axes[axis][value].settings)
    for registry, axis in ((INITS, "init"), (SYSTEMS, "adapt")):
        preparation = registry.get(part.values.get(axis, ""))
        if preparation is not None:
            defaults |= _defaults(preparation.settings())
    return {**defaults, **part.settings}


def _defaults(settings: Mapping[str, Setting]) -> dict[str, object]:
    return {name: setting.default for name, setting in settings.items()}


TABLES = {"axes": axes_table, "parts": parts_table, "objectives": objectives_table, "methods": methods_table}


def update(text: str) -> str:
    """A page with its tables up to date."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise unknown("table", match[2], TABLES)
        return f"{match[1]}{TABLES[match[2]]()}{match[3]}"

    return _TABLE.sub(table, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the tables of some pages; exit code 1 if ``--check`` finds one that is not up to date."""
    parser = argparse.ArgumentParser(prog="python docs/tables.py", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    old = []
    for page in options.pages:
        text = page.read_text(encoding="utf-8")
        updated = update(text)
        if updated != text:
            old.append(page)
            if options.write:
                page.write_text(updated, encoding="utf-8")
    for page in old:
        print(f"{page}: {'updated' if options.write else 'not up to date, run with --write'}", file=sys.stderr)
    return int(bool(old) and options.check)


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _with_source(part: Part) -> str:
    return f"{part.summary} *{part.source}*" if part.source else part.summary


def _settings(settings: Mapping[str, object]) -> str:
    shown = [f"{_code(name.replace('_', '-'))} {_number(value)}".strip() for name, value in settings.items()]
    return ", ".join(shown)


def _weights(objectives: Mapping[str, Weight]) -> str:
    return ", ".join(f"{name} {_number(weight)}" for name, weight in objectives.items())


def _number(value: object) -> str:
    """Return a number as text; nothing for an input without a default, such as a file."""
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, (int, float)) else str(value)
    if set(value) == set(FAMILIES):
        return " / ".join(f"{value[family]:g}" for family in FAMILIES)
    return "by data set"


if __name__ == "__main__":
    sys.exit(main())
