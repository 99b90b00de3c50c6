"""Pages of the documentation with parts that programs write: between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

from pathlib import Path


def replaced(page: str, name: str, text: str) -> str:
    """The page with ``text`` between the marks of ``name``.

    >>> replaced("a <!-- scores -->old<!-- /scores --> b", "scores", "new")
    'a <!-- scores -->\\nnew\\n<!-- /scores --> b'
    """
    before, rest = page.split(f"<!-- {name} -->")
    _, after = rest.split(f"<!-- /{name} -->")
    return f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}"


def put_into(page: Path, name: str, text: str) -> None:
    """Write ``text`` between the marks of ``name`` in the file."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")
