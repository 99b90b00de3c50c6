"""Which tests are slow, and with how many threads they run: ``OTPT_TEST_THREADS`` says so (see ``processors.py``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# a loaded machine is slow; that is no fault of the code
hypothesis_settings.register_profile("otpt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("otpt")

THREADS = int(os.environ.get("OTPT_TEST_THREADS", "0"))

# Several test processes side by side: one thread each, or they wait for each other. Before torch is imported.
if THREADS or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS or 1))


SLOW = (
    "test_first_calls.py",
    "test_processors.py",
    "backbones/test_compiling.py",
    "backbones/test_huggingface.py",
    "backbones/test_imports.py",
    "backbones/test_loading.py",
    "backbones/test_objects.py",
    "backbones/test_pocket.py",
    "backbones/test_tokenizer.py",
    "benchmarks/",
    "calibration/test_conformal.py",
    "calibration/test_cots.py",
    "calibration/test_risk.py",
    "cli/",
    "costs/test_counted.py",
    "data/test_registered_sets.py",
    "devices/test_methods.py",
    "devices/test_paths.py",
    "devices/test_training.py",
    "docs/test_names.py",
    "docs/test_run.py",
    "docs/test_tutorials.py",
    "evaluation/",
    "features/test_cache.py",
    "learning/",
    "methods/baple/",
    "methods/caches/test_stream_oracles.py",
    "methods/fpp/",
    "methods/fpt/",
    "methods/maple/",
    "methods/promptsmooth/",
    "methods/own_functions/",
    "methods/prompt_tuning/test_peers.py",
    "methods/posthoc/",
    "methods/test_rounds.py",
    "methods/test_worked_examples.py",
    "prompts/test_learned_checkpoints.py",
    "rejection/test_rejector.py",
    "report/",
    "runs/test_growing.py",
    "runs/test_locks.py",
    "runs/test_metrics_command.py",
    "runs/test_schedule.py",
    "serve/",
    "torture/",
    "training/",
)
"""Tests that start processes, kill them, train, run whole commands or step through many cases, which ``make test-fast``
leaves out. Every room keeps tests against oracles among the quick ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests by where they are."""
    for item in items:
        if _is_slow(item.path):
            item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of slow tests are not even imported for the quick ones."""
    return True if config.option.markexpr == "not slow" and _is_slow(collection_path) else None


def _is_slow(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).as_posix().startswith(SLOW)


@pytest.fixture
def registries() -> Iterator[None]:
    """Functions that a test registers are forgotten after it."""
    from otpt.calibration.registry import CALIBRATIONS
    from otpt.functions import PLUGIN
    from otpt.methods.axes import ADAPTATIONS, AGGREGATIONS, GATES
    from otpt.objectives import OBJECTIVES

    kept = [(each, dict(each)) for each in (OBJECTIVES, CALIBRATIONS, ADAPTATIONS, AGGREGATIONS, GATES)]
    plugins = {name for name in sys.modules if name.startswith(PLUGIN)}
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.startswith(PLUGIN) and name not in plugins]:
        del sys.modules[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """After the fixtures, some of which set one thread."""
    if THREADS:
        import torch

        torch.set_num_threads(THREADS)
    return (yield)
