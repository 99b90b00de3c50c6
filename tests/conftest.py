"""Settings of every test process: hypothesis, threads (``OTPT_TEST_THREADS``), a time limit, registries."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# no deadline: the machine may be busy
hypothesis_settings.register_profile("otpt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("otpt")

THREADS = int(os.environ.get("OTPT_TEST_THREADS", "0"))
SECONDS = 300
"""Time limit of a test that is not ``long``; none takes a twentieth of it on a quiet machine."""

# One thread per xdist worker, or the workers wait for each other. Must be set before torch is imported.
if THREADS or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS or 1))


@pytest.fixture(autouse=True)
def no_first_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs begin after a minute: what a command prints does not depend on how busy the machine is."""
    monkeypatch.setattr("otpt.progress.FIRST_SECONDS", ())


@pytest.fixture
def registries() -> Iterator[None]:
    """Restore the registries of functions after the test."""
    import otpt.methods  # noqa: F401
    from otpt.plugins import MODULE_PREFIX, snapshot

    restore = snapshot()
    plugins = {name for name in sys.modules if name.startswith(MODULE_PREFIX)}
    yield
    restore()
    for name in [name for name in sys.modules if name.startswith(MODULE_PREFIX) and name not in plugins]:
        del sys.modules[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Set the number of threads after the fixtures, some of which set one thread."""
    if THREADS:
        import torch

        torch.set_num_threads(THREADS)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, its fixtures included."""
    if item.get_closest_marker("long") or not hasattr(signal, "SIGALRM"):
        return (yield)

    def stop(*_: object) -> None:
        raise TimeoutError(f"{item.nodeid} takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
