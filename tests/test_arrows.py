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
SHARED = {"_version", "errors", "files", "functions", "registry", "threads", "transfers"}
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


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """(module, name that is taken from it) of all imports in a module's code but those for type checkers alone."""
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
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def imported(path: Path) -> Iterator[str]:
    """Rooms that a module imports anywhere in its code."""
    for module, name in imports(path):
        whole = f"otpt.{name}" if module == "otpt" else module
        if whole.startswith("otpt."):
            yield whole.split(".")[1]


@cache
def modules() -> dict[str, Path]:
    """All modules of the package; a folder has the name of its ``__init__``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def exported(package: str) -> dict[str, str]:
    """Public name → module that has it, of a room whose ``__init__.pyi`` lists them."""
    stub = modules()[package].with_suffix(".pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8")) if stub.is_file() else ast.Module([], [])
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return {
        alias.asname or alias.name: f"{package}.{node.module or alias.name}" for node in lists for alias in node.names
    }


def where(module: str, name: str | None) -> str | None:
    """The module of the package that an import executes last; None for other packages."""
    if name is not None and f"{module}.{name}" in modules():
        return f"{module}.{name}"
    if module not in modules():
        return None
    source = exported(module).get(name or "", module)
    return where(source, name) if source != module else module


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


def test_no_modules_import_each_other() -> None:
    """Nor within a room, nor lazily: who reads one of them would have to read both."""
    graph = {name: {where(*each) for each in imports(path)} - {None, name} for name, path in modules().items()}
    assert graph["otpt.methods.preparing"] >= {"otpt.methods.inits.initial_texts", "otpt.methods.baple.group"}
    TopologicalSorter(graph).prepare()


def test_a_folder_holds_few_enough_modules_to_be_read_at_a_glance() -> None:
    counted = {
        folder.relative_to(SOURCE).as_posix(): len([path for path in folder.glob("*.py") if path.stem not in FRONT])
        for folder in [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())]
    }
    assert {name: count for name, count in counted.items() if count > 15} == {}


def test_the_design_page_names_every_room_within_a_room() -> None:
    section = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("## The rooms", 1)[1].split("\n## ", 1)[0]
    rows = {line.split("`")[1].rstrip("/"): line for line in section.splitlines() if line.startswith("| `")}
    missing = [
        path.parent.relative_to(SOURCE).as_posix()
        for path in SOURCE.glob("*/**/__init__.py")
        if path.parent.parent != SOURCE and f"`{path.parent.name}/`" not in rows[path.relative_to(SOURCE).parts[0]]
    ]
    assert not missing
