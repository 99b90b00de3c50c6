"""Puts the small bench of the evaluation on the path, and computes with one thread unless a test says more."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from evaluation_bench import one_thread

__all__ = ["one_thread"]
