"""Rooms import one way: the edges between them are those of the table in docs/design.md, lazy imports included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "otpt"
FRONT = {"__init__", "__main__"}
"""The package itself, and the command as a module: doors, not rooms."""
SHARED = {"_version", "errors", "files", "functions", "threads", "transfers"}
"""Modules that every room may import."""


def table() -> dict[str, set[str]]:
    """Room → rooms that it may import, as the design page says."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.split("## The rooms", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+)(?:/|\.py)`", cells[0]) if len(cells) == 4 else ():
            found[name] = set(re.findall(r"\w+", cells[2]))
    return found


def imported(path: Path) -> Iterator[str]:
    """Rooms that a module imports anywhere in its code; imports for type checkers alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inside
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inside in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"otpt.{alias.name}" for alias in node.names] if node.module == "otpt" else [node.module]
        for name in names:
            if name.startswith("otpt."):
                yield name.split(".")[1]


@cache
def edges() -> dict[str, dict[str, list[str]]]:
    """Room → imported room → modules that do it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        room = relative.parts[0].removesuffix(".py")
        if room in FRONT:
            continue
        for other in imported(path):
            if other != room:
                found.setdefault(room, {}).setdefault(other, []).append(relative.as_posix())
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    modules = {path.stem for path in SOURCE.glob("*.py")} - FRONT - {"_version"}
    assert rooms | modules == set(table())


def test_no_import_that_the_table_forbids() -> None:
    allowed = table()
    wrong = {
        f"{room} imports {other}": where
        for room, others in edges().items()
        for other, where in others.items()
        if room not in SHARED | {"_version"} and other not in allowed[room] | SHARED
    }
    assert not wrong
    assert not {other for room in SHARED for other in edges().get(room, {})} - SHARED


def test_the_table_allows_nothing_that_is_not_used() -> None:
    used = edges()
    unused = {room: others - set(used.get(room, {})) for room, others in table().items()}
    assert not {room: others for room, others in unused.items() if others}


def test_arrows_point_one_way() -> None:
    TopologicalSorter(table()).prepare()
