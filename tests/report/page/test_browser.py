"""The page in a real browser: it sorts, switches its colours and opens data sets, without a word in the console."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from oracles.runs.figure_bench import Bench

from otpt.report.page import make_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

SCRIPT = """
const told = {};
const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)];
const column = (id, k) => rows(id).map((row) => row.cells[k].textContent.trim());
const press = (id, k) => document.querySelectorAll(`#${id} thead button`)[k].click();
const sorts = (id) => [...document.querySelectorAll(`#${id} thead th`)].map((th) => th.getAttribute("aria-sort"));
const ink = () => getComputedStyle(document.body).color;
addEventListener("load", () => {
  told.before = column("averages", 2);
  press("averages", 2);
  told.ascending = column("averages", 2);
  told.sorts = sorts("averages");
  document.querySelectorAll("#averages thead button")[2].focus();
  told.focused = document.activeElement === document.querySelectorAll("#averages thead button")[2];
  press("averages", 2);
  told.descending = column("averages", 2);
  press("numbers", 1);
  told.methods = column("numbers", 1);
  const metric = document.getElementById("metric");
  metric.value = "accuracy";
  metric.dispatchEvent(new Event("change"));
  told.accuracy = column("matrix", 1);
  const theme = document.getElementById("theme");
  told.inks = [ink()];
  for (const _ of [0, 1]) { theme.click(); told.inks.push(ink()); }
  told.pressed = theme.getAttribute("aria-pressed");
  const second = document.getElementById("dataset-2");
  told.closed = second.open;
  second.querySelector("summary").click();
  told.opened = second.open;
  told.figure = second.querySelector("figure svg").getBoundingClientRect().width;
  dispatchEvent(new Event("beforeprint"));
  told.printed = [...document.querySelectorAll("details")].every((each) => each.open);
  told.wide = document.documentElement.scrollWidth - innerWidth;
  told.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  document.body.append(Object.assign(document.createElement("pre"), { id: "told", textContent: JSON.stringify(told) }));
});
"""


def browse(folder: Path, page: str, script: str = SCRIPT) -> tuple[dict[str, Any], list[str]]:
    """What the script found on the page, and all that went to the console; the page's own policy stays in force."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr",
         f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", "--window-size=1280,900", "--dump-dom",
         path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])) if found else {}, console


def test_the_page_works(bench: Bench, tmp_path: Path) -> None:
    told, console = browse(tmp_path, make_page(bench.results(), root=bench.data))
    assert console == []
    assert told["requests"] == []
    ece = [float(value) for value in told["before"]]
    assert [float(value) for value in told["ascending"]] == sorted(ece)
    assert [float(value) for value in told["descending"]] == sorted(ece, reverse=True)
    assert told["sorts"][:4] == ["none", "none", "ascending", "none"]
    assert told["focused"]
    assert told["methods"] == sorted(told["methods"])
    results = bench.results()
    shown = [f"{100 * results.score(c).metrics.accuracy:.2f}" for c in results.keys if c.dataset == "first"]
    assert sorted(told["accuracy"]) == sorted(shown)
    first, second, third = told["inks"]
    assert first == third != second
    assert told["pressed"] in {"true", "false"}
    assert (told["closed"], told["opened"], told["printed"]) == (False, True, True)
    assert told["figure"] > 100
    assert told["wide"] <= 0, "nothing sticks out to the right"


def test_the_policy_forbids_the_network(bench: Bench, tmp_path: Path) -> None:
    """What the test above would see if something were asked for."""
    page = make_page(bench.results(), images=0)
    page = page.replace("</main>", '<img src="https://example.invalid/x.png" alt=""></main>')
    _, console = browse(tmp_path, page)
    assert any("Content Security Policy" in line for line in console)
