"""Equality of results under threads, batches, order and resume, on imitated processors (see ``processors.py``)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processors import PROCESSORS, THREADS, bounded, environment

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("processor_results.py")


def results(processor: str, started_with: int, folder: Path, *threads: int) -> tuple[int, dict[str, Any]]:
    """Exit code and results of one process."""
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, threads)]
    done = subprocess.run(command, env=environment(processor, started_with), capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), f"{done.returncode}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if one[name] != other[name]]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_nothing_depends_on_threads_batches_order_or_resume(processor: str, tmp_path: Path) -> None:
    """Two processes: one starts with five threads and is killed; the other sets 1, 2, 3 and 5 and resumes its run."""
    if bounded(processor):
        pytest.skip(f"this machine has no {processor}: it would repeat the processor before")
    killed, started = results(processor, 5, tmp_path)
    assert (killed, started["threads"]) == (-signal.SIGKILL, 5)
    code, looped = results(processor, 1, tmp_path, *THREADS)
    assert (code, looped["threads"]) == (0, 1)
    first = looped["rounds"]["1"]
    print(f"{processor}: PyTorch reports {looped['capability']}; {len(first)} results with {THREADS} threads")
    for threads in THREADS[1:]:
        assert not different(first, looped["rounds"][str(threads)]), f"{threads} threads, set later"
    assert not different(first, started["rounds"]["5"]), "five threads from the start"
