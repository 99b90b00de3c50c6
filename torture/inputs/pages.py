"""The page of a report: names of classes, files, methods, prompts, data sets and models that are scripts."""

from __future__ import annotations

import random
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from otpt.report import open_results
from otpt.report.page import make_page, write_page
from torture.inputs.kinds import Broken, Input, Kind
from torture.inputs.mutations import SCRIPTS, storable, text
from torture.inputs.runs import config, write_run

_LINKS = (
    "href",
    "src",
    "action",
    "formaction",
    "xlink:href",
    "srcdoc",
    "data",
    "poster",
    "background",
    "ping",
    "srcset",
)


class Shape(HTMLParser):
    """What a browser makes of a page: its tags with the names of their attributes, its scripts, its links.

    Text between tags, and values of attributes that are neither links nor handlers, cannot run; all else is kept.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[tuple[str, tuple[str, ...]]] = set()
        self.scripts: list[str] = []
        self.links: set[str] = set()
        self.policy = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, tuple(sorted(name for name, _ in attrs))))
        values: dict[str, Any] = dict(attrs)
        self.links |= {str(values[name]).split(",")[0][:40] for name in _LINKS if name in values}
        if tag == "meta" and values.get("http-equiv"):
            self.policy += str(values.get("content"))
        self._inside = tag if tag in ("script", "style") else ""
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


@cache
def _honest() -> Shape:
    """The shape of a page with plain names."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        write_run(Path(place) / "run", config())
        return Shape(make_page(open_results([Path(place) / "run"])))


def check(page: str) -> None:
    """:class:`Broken` if the page has a tag, an attribute, a script or a link that one with plain names has not."""
    found, honest = Shape(page), _honest()
    if found.scripts != honest.scripts:
        raise Broken("another script or style than the page's own")
    if found.policy != honest.policy:
        raise Broken("another content policy")
    if found.tags - honest.tags:
        raise Broken(f"tags that only a name can have made: {sorted(found.tags - honest.tags)[:3]}")
    strange = [link for link in found.links if not link.startswith(("#", "data:image/jpeg;base64"))]
    if strange:
        raise Broken(f"links to elsewhere: {strange[:3]}")


def _name(rng: random.Random) -> str:
    return storable(rng.choice(SCRIPTS) if rng.random() < 0.6 else text(rng)).replace("\x00", "") or "x"


def _page(rng: random.Random, given: Path) -> Input:
    classes = tuple(f"{_name(rng)}{number}" for number in range(5))
    asked = config(classes, dataset=_name(rng), backbone=_name(rng))
    asked["commands"] = [_name(rng)]
    asked["datasets"][0]["source"] = rng.choice((_name(rng), f"/{_name(rng)}", "hf:x/y", str(given / "none")))
    for column in asked["datasets"][0]["columns"]:
        if rng.random() < 0.5:
            column["prompt"]["name"] = _name(rng)
        column["views"] = _name(rng)
    asked["versions"][_name(rng)] = _name(rng)
    ends = [_name(rng) for _ in range(10)]
    write_run(given / "run", asked, lambda index: f"{index}{ends[index]}.jpg")
    title = _name(rng)

    def ask() -> object:
        page = make_page(open_results([given / "run"]), title=title, command=title)
        write_page(given / "page.html", page)
        check(page)
        return len(page)

    return Input(f"the title {ascii(title)[:40]}", ask)


KINDS = [Kind("report pages", _page, _honest)]
