"""Functions that a test registers are forgotten after it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _forget(registries: None) -> None:
    """See ``registries`` in the conftest above."""
