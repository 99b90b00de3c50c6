"""Each first call of ``first_calls.py`` is answered, or ends in the sentence that says what to write instead."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_calls", Path(__file__).with_name("first_calls.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    for package in ("torchmetrics", "transformers"):
        pytest.importorskip(package)
    with SCRIPT.prepared() as found:
        yield found


@pytest.mark.filterwarnings("ignore::UserWarning")  # torchmetrics warns, then ours says what to do
@pytest.mark.parametrize("call", SCRIPT.CALLS, ids=lambda call: call.text[:60])
def test_first_call(call: Any, names: dict[str, Any]) -> None:
    outcome, said = SCRIPT.run(call, names)
    assert outcome == call.outcome, said
    assert re.search(call.expected, said), said


def test_twenty_calls_of_each_project() -> None:
    projects = [call.project for call in SCRIPT.CALLS]
    assert {projects.count(each) for each in projects} == {20}
    assert len(set(projects)) == 4
