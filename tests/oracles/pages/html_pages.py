"""What stands in a page, for tests."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Tables, tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table: list[list[str]] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "table":
            self._table = self.tables.setdefault(str(attributes.get("id")), [])
        elif tag == "tr":
            self._table.append([])
        elif tag in {"td", "th"}:
            self._table[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._table[-1][-1] += data
