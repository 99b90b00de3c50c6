"""The examples in the docstrings of metrics and calibration run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import otpt.calibration
import otpt.metrics
from otpt.metrics import METRICS

MODULES = [
    info.name
    for package in (otpt.metrics, otpt.calibration)
    for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", METRICS)
def test_docstrings_of_metrics(name):
    """The decorator hides them from doctest."""
    function = getattr(otpt.metrics, METRICS[name].aliases[0])
    examples = doctest.DocTestParser().get_doctest(function.__doc__, vars(otpt.metrics), name, None, None)
    assert doctest.DocTestRunner().run(examples).failed == 0
