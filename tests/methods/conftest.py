"""Registries as they were, for tests that register functions of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from otpt.calibration.registry import CALIBRATIONS
from otpt.functions import PLUGIN
from otpt.methods.axes import ADAPTATIONS, AGGREGATIONS, GATES
from otpt.objectives import OBJECTIVES


@pytest.fixture
def registries() -> Iterator[None]:
    all_of_them = (OBJECTIVES, CALIBRATIONS, ADAPTATIONS, AGGREGATIONS, GATES)
    before = [dict(each) for each in all_of_them]  # type: ignore[call-overload]
    plugins = {name for name in sys.modules if name.startswith(PLUGIN)}
    yield
    for name in [name for name in sys.modules if name.startswith(PLUGIN) and name not in plugins]:
        del sys.modules[name]
    for registry, values in zip(all_of_them, before, strict=True):
        registry.clear()
        registry.update(values)
