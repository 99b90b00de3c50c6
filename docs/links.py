"""Every link leads somewhere: ``python docs/links.py build/site README.md CONTRIBUTING.md CHANGELOG.md``.

Of a built site each ``href`` and ``src``, of a Markdown file each link: the file is there, and the anchor in it. No
network is used: addresses of other hosts are only checked for their form.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ELSEWHERE = ("http", "https", "mailto", "data", "javascript")


class _Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)


@cache
def read(path: Path) -> tuple[tuple[str, ...], frozenset[str]]:
    """Links and anchors of a file: HTML, or Markdown as GitHub shows it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        page = _Page()
        page.feed(text)
        return tuple(page.links), frozenset(page.anchors)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    links = re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", re.sub(r"`[^`]*`", "", text))
    return tuple(links), frozenset(anchors)


def broken(page: Path, root: Path) -> Iterator[str]:
    """What is wrong with the links of a page; those that begin with a slash are below ``root``."""
    for link in read(page)[0]:
        parts = urlsplit(link)
        if parts.scheme in ELSEWHERE or link.startswith("//"):
            if parts.scheme in ("http", "https") and not parts.hostname:
                yield f"{page}: {link!r} has no host"
            continue
        path = unquote(parts.path)
        target = page if not path else (root / path.lstrip("/")) if path.startswith("/") else page.parent / path
        target = target / "index.html" if target.is_dir() and page.suffix == ".html" else target
        if not target.exists():
            yield f"{page}: {link!r} leads to {target}, which is not there"
        elif parts.fragment and target.suffix in (".html", ".md") and unquote(parts.fragment) not in read(target)[1]:
            yield f"{page}: {link!r} leads to an anchor that {target.name} does not have"


def main(given: list[str]) -> int:
    """Print what is broken; 1 if anything is."""
    found = []
    for each in map(Path, given):
        pages = sorted(each.rglob("*.html")) if each.is_dir() else [each]
        # the page for addresses that do not exist names its files from the root of whatever host it is on
        found += [line for page in pages if page.name != "404.html" for line in broken(page, each)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found or not given else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
