"""What it costs to start: the package, the parser, and the options of every command."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TIMES = {"import otpt": 2.0, "import otpt.cli.parser": 3.0}
"""Processor time at most, as a multiple of what ``import asyncio`` takes; about ten times what was measured."""
HEAVY = "torch numpy open_clip matplotlib pyarrow argcomplete fastapi uvicorn ray PIL"


def seconds(statement: str) -> float:
    """Processor time of a statement in a fresh interpreter; other processes disturb the least of a few but little."""
    program = f"import time; before = time.process_time(); {statement}; print(time.process_time() - before)"
    return min(float(_output(program)) for _ in range(5))


def _output(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def yardstick() -> float:
    """A part of the standard library takes longer on a slower machine, too."""
    return seconds("import asyncio")


@pytest.mark.parametrize("statement", TIMES)
def test_imports_are_quick(statement: str, yardstick: float) -> None:
    assert seconds(statement) < TIMES[statement] * yardstick


OPTIONS = "from otpt.cli.parser import COMMANDS, make_parser; make_parser(COMMANDS)"


@pytest.mark.parametrize("statement", [*TIMES, OPTIONS])
def test_starting_needs_no_heavy_library(statement: str) -> None:
    assert _output(f"import sys; {statement}; print(sorted(set('{HEAVY}'.split()) & set(sys.modules)))") == "[]"
