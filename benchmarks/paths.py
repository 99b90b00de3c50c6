"""Where the tests' literal oracles are: the slow way that benchmarks compare with."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
