"""Tables of the documentation, generated from the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tables import TABLES, main
from otpt.errors import OtptError


def page(folder: Path, name: str) -> Path:
    path = folder / f"{name}.md"
    path.write_text(f"before\n\n<!-- table: {name} -->\nstale row\n<!-- end of table -->\n\nafter\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TABLES)
def test_write_then_check(name: str, tmp_path: Path) -> None:
    path = page(tmp_path, name)
    assert main([str(path), "--check"]) == 1
    assert "stale row" in path.read_text(encoding="utf-8"), "checking writes nothing"
    assert main([str(path), "--write"]) == 0
    assert main([str(path), "--check"]) == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale row" not in text
    rows = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 5
    assert len({row.count("|") for row in rows}) == 1, "all rows have the same columns"


def test_numbers(tmp_path: Path) -> None:
    path = page(tmp_path, "methods")
    main([str(path), "--write"])
    text = path.read_text(encoding="utf-8")
    assert "| `o-tpt` | entropy 1, orthogonality 18 / 2 |" in text
    assert "`vote-ratio` 0.3" in text
    assert "`cache-alpha` by data set" in text


def test_unknown_table(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="'nothing'"):
        main([str(page(tmp_path, "nothing")), "--check"])
