"""Every public name has a docstring with an example, and the examples run."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest

import otpt

NAMES = [name for name in otpt.__all__ if name != "__version__" and not isinstance(getattr(otpt, name), ModuleType)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("registries")
def test_examples(name: str) -> None:
    found = getattr(otpt, name)
    module = inspect.getmodule(found)
    assert module is not None
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", dict(vars(module)), name, None, None)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
