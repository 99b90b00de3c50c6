"""Packages and modules import one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "otpt"


def modules() -> dict[str, Path]:
    """All modules of the package by dotted name; a folder has the name of its ``__init__``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, but those for type checkers."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
        elif isinstance(node, ast.If | ast.Try):
            yield from statements(node.body)
        else:
            yield node


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a module imports."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in known else str(node.module)


def test_modules_import_one_way() -> None:
    known = modules()
    graph = {name: set(imports(path, known)) - {name, "otpt"} for name, path in known.items() if name != "otpt"}
    assert "otpt.errors" in graph["otpt.methods.method"]
    TopologicalSorter(graph).prepare()


def test_packages_import_one_way() -> None:
    """The top-level packages and modules form layers: nobody imports who imports it."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        if name.count("."):
            package = name.split(".")[1]
            others = {other.split(".")[1] for other in imports(path, known) if other.count(".")}
            graph.setdefault(package, set()).update(others - {package})
    graph.pop("__main__")
    TopologicalSorter(graph).prepare()


def test_nobody_imports_the_command_line() -> None:
    known = modules()
    outside = [name for name in known if not name.startswith("otpt.cli") and name != "otpt.__main__"]
    wrong = [name for name in outside if any(other.startswith("otpt.cli") for other in imports(known[name], known))]
    assert wrong == []
