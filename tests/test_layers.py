"""Imports go down: the table of layers, and every import of every module.

Counted are imports at the top of a module, inside functions and under ``TYPE_CHECKING``, and strings that name a module
("otpt.cli.predict:predict"). The front door, ``otpt/__init__.py``, is generated from ``__init__.pyi`` and loads lazily.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_version", "escapes", "errors", "arguments", "arrays", "files", "threads", "transfers", "progress", "records"),
    ("plugins", "registry", "images", "folders", "video", "decoders", "labels", "plots", "views", "metrics"),
    ("objectives", "backbones"),
    ("features", "prompts", "calibration", "rejection", "groups"),
    ("methods",),
    ("decision", "prediction", "functional", "explain", "export", "classifier", "hugging_face"),
    ("data", "runs", "workers"),
    ("evaluation", "bulk", "learning"),
    ("report",),
    ("serve", "cli", "__main__"),
)
"""Packages and top-level modules of ``src/otpt``, the lowest layer first.

Each may import those of lower layers, and those that stand before it in its own layer.
"""
LAZY = "cli"
"""Package whose functions import modules, so that ``otpt --help`` stays fast."""
RANKS = {package: rank for rank, package in enumerate(package for layer in LAYERS for package in layer)}


class Import(NamedTuple):
    """One import.

    Attributes:
        module: the importing module.
        target: the imported module.
        name: what is imported of it; "" for the module itself.
        line: line of the import.
        at_top: whether it stands at the top of the module.
    """

    module: str
    target: str
    name: str
    line: int
    at_top: bool

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.target}"


@cache
def modules(package: str = "otpt") -> dict[str, Path]:
    """Return the modules of a package by dotted name; a folder has the name of its ``__init__``."""
    paths = {}
    for path in sorted((SOURCE / package).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def plugins() -> list[str]:
    """Return the packages next to ``otpt``."""
    return sorted(path.name for path in SOURCE.iterdir() if path.name != "otpt" and (path / "__init__.py").is_file())


def imports(module: str, path: Path) -> Iterator[Import]:
    """Yield the imports of modules of ``otpt``; the front door, "otpt", is one of them."""
    known = modules()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    folder = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        at_top = node in tree.body
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "otpt":
                    yield Import(module, alias.name, "", node.lineno, at_top)
        elif isinstance(node, ast.ImportFrom):
            parents = folder[: len(folder) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            if base.partition(".")[0] == "otpt":
                for alias in node.names:
                    if (target := f"{base}.{alias.name}") in known:
                        yield Import(module, target, "", node.lineno, at_top)
                    else:
                        yield Import(module, base, alias.name, node.lineno, at_top)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name in known and name not in ("otpt", module):
                yield Import(module, name, "", node.lineno, at_top)


@cache
def all_imports() -> tuple[Import, ...]:
    """Return every import of ``otpt`` but those of its front door."""
    return tuple(each for module, path in modules().items() if module != "otpt" for each in imports(module, path))


def top(module: str) -> str:
    """Return the package or top-level module that a module belongs to; "otpt" for the front door."""
    return module.split(".")[1] if "." in module else module


def test_the_table_is_complete() -> None:
    assert sorted(RANKS) == sorted({top(module) for module in modules() if module != "otpt"})
    assert len(RANKS) == sum(len(layer) for layer in LAYERS), "a package stands in two layers"


def test_imports_go_down() -> None:
    wrong = []
    for each in all_imports():
        package, target = top(each.module), top(each.target)
        if target not in RANKS or RANKS[target] > RANKS[package]:
            wrong.append(str(each))
    assert wrong == []
    assert len(all_imports()) > 1000, "imports are read"


def test_no_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for each in all_imports():
        if each.target != each.module:
            graph.setdefault(each.module, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_imports_stand_at_the_top() -> None:
    inside = [each for each in all_imports() if not each.at_top and top(each.module) != LAZY]
    assert [str(each) for each in inside] == []


def test_plugins_are_unknown() -> None:
    """The core neither imports nor names a plugin; plugins use public names of the core."""
    assert plugins() != []
    for path in (SOURCE / "otpt").rglob("*"):
        if path.suffix in (".py", ".pyi", ".toml", ".json"):
            words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            assert words.isdisjoint(plugins()), path
    for plugin in plugins():
        for module, path in modules(plugin).items():
            for each in imports(module, path):
                parts = [*each.target.split("."), each.name]
                assert not any(part.startswith("_") and part != "__version__" for part in parts), str(each)
