"""The scripts of the site, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.pages.browser import CHROMIUM, Browser
from oracles.pages.docs_pages import DOCS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


def test_options_are_not_broken_within(tmp_path: Path) -> None:
    """Words of code with a hyphen stay whole, up to a length; the text is what it was."""
    texts = ["--seeds N", "o-tpt", "plain", f"--{'long-' * 8}x", "a <b>-c"]
    shown = "".join(f"<p><code>{text.replace('<', '&lt;')}</code></p>" for text in texts)
    style, script = (DOCS / "assets" / name for name in ("otpt.css", "code.js"))
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><link rel="stylesheet" href="{style.as_uri()}"><script src="{script.as_uri()}"></script>'
        f'<body><div class="md-typeset">{shown}<pre><code>--block</code></pre></div>',
        encoding="utf-8",
    )
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        browser.wait('document.querySelector(".whole") !== null')
        assert browser.run('[...document.querySelectorAll("p code")].map((each) => each.textContent)') == texts
        whole = '[...document.querySelectorAll(".whole")]'
        assert browser.run(f"{whole}.map((each) => each.textContent)") == ["--seeds", "o-tpt", "<b>-c"]
        assert browser.run(f'{whole}.every((each) => getComputedStyle(each).whiteSpace === "nowrap")')
