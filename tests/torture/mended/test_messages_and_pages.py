"""Faults that the campaign found in messages and report pages, each with the smallest text that showed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otpt.errors import OtptError
from otpt.report.page.images import Thumbnails
from otpt.report.page.page import marked
from otpt.report.page.summary import isolated

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u202egnp", "\ud800", "\u2028"])
def test_a_message_is_one_line_that_a_terminal_can_show(name: str) -> None:
    told = str(OtptError(f"There is no {name}."))
    assert told.isprintable()
    assert len(told.splitlines()) == 1


def test_a_message_is_bounded_and_keeps_its_end() -> None:
    told = str(OtptError(f"There is no {'x' * 10**6}; check the path."))
    assert len(told) < 2100
    assert told.startswith("There is no x")
    assert told.endswith("; check the path.")
    assert str(OtptError("Emoji stay: 👩‍🚀, and ½ too.")) == "Emoji stay: 👩‍🚀, and ½ too."


def test_a_name_with_isolates_of_its_own_adds_nothing_to_a_page() -> None:
    """Each isolate of a name became a tag: the page had one <bdi> too many, which nothing closed."""
    page = str(marked(isolated("a\u2069b\u2068\u2067c") + " has the lowest ECE."))
    assert page == "<bdi>abc</bdi> has the lowest ECE."


def test_the_name_of_a_data_set_of_a_run_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a run whose data set is called '..' looked for images in the parent of the working folder."""
    monkeypatch.setattr("otpt.report.page.images.load_dataset", lambda *_, **__: pytest.fail("it was looked for"))
    for name in ("..", "/etc", "mine"):
        found = Thumbnails({"name": name, "source": "mine", "fingerprint": "f"}, None)
        assert found.reason == "The images are not shown: the run does not say where they are."
