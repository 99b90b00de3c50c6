"""The examples of the pages on metrics and calibration run, and print what the pages say they print.

A page's python blocks run one after the other in one namespace; a text block that follows one is its output.
The examples in the docstrings of the two rooms run too.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path

import pytest

import otpt.calibration
import otpt.metrics
from otpt.metrics import METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
MODULES = [
    info.name
    for room in (otpt.metrics, otpt.calibration)
    for info in pkgutil.iter_modules(room.__path__, prefix=f"{room.__name__}.")
]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", ["metrics.md", "calibration.md"])
def test_page(page):
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(blocks) >= 4
    namespace: dict[str, object] = {}
    for source, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, page, "exec"), namespace)
        assert printed.getvalue() == expected, source


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", METRICS)
def test_docstrings_of_metrics(name):
    """The decorator hides them from doctest."""
    function = getattr(otpt.metrics, METRICS[name].aliases[0])
    examples = doctest.DocTestParser().get_doctest(function.__doc__, vars(otpt.metrics), name, None, None)
    assert doctest.DocTestRunner().run(examples).failed == 0
