"""The pages of the documentation, and what is written in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
RUN_ELSEWHERE = {"metrics.md", "calibration.md"}  # by tests/metrics
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))  # each runs from top to bottom, by tests/docs/test_tutorials.py

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what follows the language, its text, and the ``text`` block right after it."""

    language: str
    title: str
    source: str
    output: str | None


def all_blocks(page: Path) -> list[Block]:
    """All blocks, in order."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    result = []
    for i, match in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else None
        follows = after is not None and after.group(1) == "text" and not text[match.end() : after.start()].strip()
        output = after.group(3) if after is not None and follows else None
        result.append(Block(match.group(1), match.group(2).strip(), match.group(3), output))
    return result


def blocks(page: Path, language: str) -> list[Block]:
    """All blocks of a language, in order."""
    return [block for block in all_blocks(page) if block.language == language]


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next heading of the same or a higher level."""
    match = re.search(rf"^(#+) {re.escape(title)}\n", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"{page.name} has no heading {title!r}"
    rest = match.string[match.end() :]
    return re.split(rf"^#{{1,{len(match.group(1))}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Cells of all table rows in a text, header rows included."""
    lines = [line for line in text.splitlines() if line.startswith("|") and set(line) - set("|- ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def code(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)
