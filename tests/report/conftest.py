"""The tiny runs, made once."""

from __future__ import annotations

import pytest
from oracles.runs.figure_bench import Bench, make_bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("bench"))
