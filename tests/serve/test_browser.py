"""The page in a real browser against a real service: drop an image, change labels, switch colours, read the bars."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles.pages.browser import CHROMIUM, Browser
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of

import otpt

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

LABELS = ["cat", "dog", "red panda"]
METHODS = ["zero-shot", "tpt", "c-tpt", "o-tpt"]
DONE = """document.getElementById("answers").getAttribute("aria-busy") === "false"
  && !document.getElementById("found").hidden && document.getElementById("status").textContent.startsWith("Answered")"""
BARS = """[...document.querySelectorAll("#bars article")].map((card) => [card.dataset.method,
  [...card.querySelectorAll("li")].map((bar) => [bar.querySelector("bdi").textContent, Number(bar.dataset.score),
    parseFloat(bar.querySelector(".fill").style.width)])])"""
DROP = """(() => {{
  const bytes = Uint8Array.from(atob("{image}"), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "my cat's photo.png", {{ type: "image/png" }}));
  const options = {{ dataTransfer: transfer, bubbles: true, cancelable: true }};
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", options));
}})()"""
CHECKED = '[...document.querySelectorAll("#methods input:checked")].map((box) => box.value)'
ALL_METHODS = 'for (const box of document.querySelectorAll("#methods input")) box.checked = true'
TYPE = """(() => {{
  const field = document.getElementById("{id}");
  field.value = {value};
  field.dispatchEvent(new Event("{event}", {{ bubbles: true }}));
}})()"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as found:
        yield found


def ask(browser: Browser, script: str) -> dict[str, Any]:
    """Does something that asks the service, and waits for what the page then shows."""
    browser.run('document.getElementById("status").textContent = ""')
    browser.run(script)
    browser.wait(DONE)
    return dict(browser.run(BARS))


def typed(name: str, value: object, event: str = "change") -> str:
    return TYPE.format(id=name, value=json.dumps(value), event=event)


def test_an_image_its_labels_and_the_bars(server: Server, browser: Browser, tmp_path: Path) -> None:
    image = image_file(3)
    browser.open(server.url)
    browser.wait('document.querySelectorAll("#methods input").length > 0')
    assert browser.run(CHECKED) == ["zero-shot", "tpt"]
    assert not any(address.endswith("/v1/compare") for address in browser.requests), "a first visit computes nothing"
    browser.run(ALL_METHODS)
    browser.run(typed("views", 8))
    browser.run(typed("labels", "\n".join(LABELS), "input"))
    bars = ask(browser, DROP.format(image=text_of(image)))

    classifier = otpt.load("pocket", device="cpu", views=8).set_classes(LABELS)
    expected = classifier.compare(image, METHODS)
    assert list(bars) == METHODS
    for method, shown in bars.items():
        top = expected[method].top(5)
        assert [label for label, *_ in shown] == [label for label, _ in top]
        assert [score for _, score, _ in shown] == pytest.approx([score for _, score in top], abs=1e-4)
        assert [width for *_, width in shown] == pytest.approx([100 * score for _, score in top], abs=0.01)
    assert expected["tpt"].label in browser.run('document.getElementById("headline").textContent')
    assert browser.run(
        """[...document.querySelectorAll(".what")].every((each) => each.scrollHeight <= each.clientHeight)"""
    )
    assert browser.run('document.querySelectorAll("#thumbnails li").length') == 8
    assert browser.run('document.querySelectorAll("#thumbnails .selected").length') == 1  # a tenth, at least one
    assert browser.run('document.querySelectorAll("#tuning tbody tr").length') == len(LABELS)
    assert "image tower" in browser.run('document.getElementById("times").textContent')

    # other labels, with the keyboard alone
    browser.run('document.getElementById("labels").focus(); document.getElementById("labels").select()')
    browser.run('document.getElementById("status").textContent = ""')
    browser.send("Input.insertText", text="owl, fox")
    browser.wait(DONE)
    assert {label for bars in dict(browser.run(BARS)).values() for label, *_ in bars} == {"owl", "fox"}
    browser.press("Tab", 9)
    assert browser.run("document.activeElement.id") == "several"
    browser.press("Tab", 9)
    assert browser.run("document.activeElement.value") == METHODS[0], "the methods come next"
    browser.run('document.getElementById("status").textContent = ""')
    browser.press(" ", 32, " ")
    browser.wait(DONE)
    assert [method for method, _ in browser.run(BARS)] == METHODS[1:]

    # the commands below the answers give the same answers
    curl = browser.run('document.getElementById("snippet").textContent')
    (tmp_path / "my cat's photo.png").write_bytes(image)
    own = curl.replace("curl ", "curl --noproxy '*' ", 1)
    done = subprocess.run(["bash", "-c", own], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    answers = json.loads(done.stdout)["results"][0]["methods"]
    for method, shown in browser.run(BARS):
        assert [(each["label"], each["score"]) for each in answers[method]["top"]] == [(a, b) for a, b, _ in shown]
    browser.run('document.getElementById("tab-1").click()')
    python = browser.run('document.getElementById("snippet").textContent')
    compile(python, "snippet", "exec")
    assert json.dumps(["owl", "fox"], separators=(",", ":")) in python

    assert browser.console == []
    assert all(address.startswith((server.url, "data:", "blob:")) for address in browser.requests)


def test_colours_width_and_errors(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.wait('document.querySelectorAll("#methods input").length > 0')
    browser.run(typed("views", 1))
    browser.run(typed("labels", "cat\ndog", "input"))
    ask(browser, DROP.format(image=text_of(image_file(4))))
    ink = "getComputedStyle(document.body).color"
    theme = 'document.getElementById("theme")'
    light = browser.run(ink)
    assert browser.run(f'{theme}.getAttribute("aria-pressed")') == "false"
    browser.run(f"{theme}.click()")
    dark = browser.run(ink)
    assert dark != light
    assert browser.run(f'{theme}.getAttribute("aria-pressed")') == "true"
    for width in (1280, 400):
        browser.resize(width)
        assert browser.run("document.documentElement.scrollWidth - innerWidth") <= 0, "nothing sticks out"
    browser.open(server.url)
    assert browser.run(ink) == dark, "the choice is kept"
    browser.run("localStorage.clear()")
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.open(server.url)
    assert browser.run(ink) == dark, "as the system has it"

    browser.wait('document.querySelectorAll("#methods input").length > 0')
    browser.run(typed("labels", "cat\ndog", "input"))
    browser.run(DROP.format(image=text_of(b"no image")))
    error = 'document.getElementById("error")'
    assert "image" in browser.wait(f"!{error}.hidden && {error}.textContent")
    place = browser.run(f"{error}.getBoundingClientRect().toJSON()")
    assert place["top"] >= 0
    assert place["bottom"] <= browser.run("innerHeight"), "the error is in view"
    # that a request was refused is told by the browser itself, and by nothing else
    assert [line for line in browser.console if "422" not in line] == []


def test_several_labels_groups_and_a_heat_map(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.wait('document.querySelectorAll("#methods input").length > 0')
    browser.run(typed("views", 2))
    browser.run(typed("labels", "\n".join(LABELS), "input"))
    browser.run('document.getElementById("several").click()')
    several = ask(browser, DROP.format(image=text_of(image_file(5))))
    assert list(several) == ["multi-label"]
    assert browser.run('document.getElementById("methods-block").hidden && document.getElementById("trust").hidden')
    assert browser.run('document.getElementById("views-block").hidden'), "its crops are not these views"

    browser.run('document.getElementById("several").click()')
    browser.run(typed("threshold", 0.999))
    ask(browser, typed("groups", f"all of them: {', '.join(LABELS)}"))
    assert "all of them" in browser.run('document.getElementById("headline").textContent')
    browser.run('document.getElementById("map-go").click()')
    browser.wait('document.querySelector("#map .layer") !== null')
    assert "%" in browser.run('document.querySelector("#map figcaption").textContent')
    box = "(each) => JSON.stringify(each.getBoundingClientRect())"
    boxes = browser.run(f'[...document.querySelectorAll("#map img")].map({box})')
    assert boxes[0] == boxes[1], "the map covers the image"
    assert browser.console == []


def test_the_token_comes_first(browser: Browser, tmp_path: Path, without_proxy: None) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    with serving("--method", "zero-shot", "--views", "1", "--token-file", str(tmp_path / "token")) as guarded:
        browser.open(guarded.url)
        browser.wait('!document.getElementById("token-form").hidden')
        assert browser.run('document.getElementById("form").hidden && scrollY === 0')
        for token in ("wrong", "0123456789abcdef"):
            browser.run(f'document.getElementById("token").value = "{token}"')
            browser.run('document.getElementById("token-form").requestSubmit()')
            browser.wait('!document.getElementById("token-error").hidden || !document.getElementById("form").hidden')
        browser.wait('!document.getElementById("form").hidden && document.getElementById("token-form").hidden')
