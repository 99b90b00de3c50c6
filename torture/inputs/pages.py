"""The page of a report: names of classes, files, methods, prompts, data sets and models that are scripts."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from itertools import permutations, product
from pathlib import Path
from typing import Any

from otpt.report import open_results
from otpt.report.page import make_page, write_page
from torture.inputs.kinds import Broken, Input, Kind
from torture.inputs.mutations import DECOY, SCRIPTS, storable, text
from torture.inputs.runs import METHODS, config, write_run

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
    """What a browser makes of a page: its tags with the names of their attributes, counted; its scripts, its links.

    Text between tags, and values of attributes that are neither links nor handlers, cannot run; all else is kept.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.scripts: list[str] = []
        self.links: set[str] = set()
        self.policy = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag, tuple(sorted(name for name, _ in attrs))] += 1
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


def check(page: str, honest: Shape) -> None:
    """:class:`Broken` unless the page has the tags, attributes, scripts and links of the one with plain names."""
    found = Shape(page)
    if found.scripts != honest.scripts:
        raise Broken("another script or style than the page's own")
    if found.policy != honest.policy:
        raise Broken("another content policy")
    if found.tags != honest.tags:
        more, fewer = (sorted((one - other).items())[:3] for one, other in permutations((found.tags, honest.tags)))
        raise Broken(f"tags that only a name can have made: {more}, or taken away: {fewer}")
    strange = [link for link in found.links if not link.startswith(("#", "data:image/jpeg;base64"))]
    if strange:
        raise Broken(f"links to elsewhere: {strange[:3]}")


@cache
def _honest(prompts: tuple[int, ...]) -> Shape:
    """The shape of the page with plain names; equal numbers for methods of the same prompt, 0 for the usual one."""
    asked = config(dataset="plain")
    asked["versions"]["plain"] = "1"
    for number, column in zip(prompts, asked["datasets"][0]["columns"], strict=True):
        column["prompt"]["name"] = f"prompt {number}" if number else column["prompt"]["name"]
    with tempfile.TemporaryDirectory() as place:
        write_run(Path(place) / "run", asked)
        return Shape(make_page(open_results([Path(place) / "run"]), title="plain", command="plain"))


def _name(rng: random.Random) -> str:
    return storable(rng.choice(SCRIPTS) if rng.random() < 0.6 else text(rng)).replace("\x00", "") or "x"


def _page(rng: random.Random, given: Path) -> Input:
    classes = tuple(f"{_name(rng)}{number}" for number in range(5))
    asked = config(classes, dataset=_name(rng), backbone=_name(rng))
    asked["commands"] = [_name(rng)]
    source = rng.choice((_name(rng), f"/{_name(rng)}", "hf:x/y", str(given / "none")))
    # A report looks for images where the run says they are (SECURITY.md); nothing else may lead to the decoys.
    asked["datasets"][0]["source"] = source.replace(DECOY, "elsewhere/")
    prompts = []
    for column in asked["datasets"][0]["columns"]:
        usual = column["prompt"]["name"]
        if rng.random() < 0.5:
            column["prompt"]["name"] = _name(rng)
        prompts.append(column["prompt"]["name"])
        column["views"] = _name(rng)
    asked["versions"][_name(rng)] = _name(rng)
    ends = [_name(rng) for _ in range(10)]
    write_run(given / "run", asked, lambda index: f"{index}{ends[index]}.jpg")
    title = _name(rng)
    honest = _honest(tuple(0 if each == usual else 1 + prompts.index(each) for each in prompts))

    def ask() -> object:
        page = make_page(open_results([given / "run"]), title=title, command=title)
        write_page(given / "page.html", page)
        check(page, honest)
        return len(page)

    return Input(f"the title {ascii(title)[:40]}", ask)


def _prepare() -> None:
    """Methods with a prompt of their own or the usual one: made once, not in every process."""
    for own in product((False, True), repeat=len(METHODS)):
        _honest(tuple(number if each else 0 for number, each in enumerate(own, 1)))


KINDS = [Kind("report pages", _page, _prepare)]
