"""Two claimed devices for all tests of this folder, and what methods need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from oracles.devices.device_bench import Bench
from oracles.devices.elsewhere import claimed_devices


@pytest.fixture(autouse=True)
def devices() -> Iterator[Sequence[str]]:
    """Chosen by name like real ones; one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with claimed_devices() as names:
        yield names
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Every method at tiny size."""
    return Bench(tmp_path_factory.mktemp("devices"))
