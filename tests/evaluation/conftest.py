"""Computes with one thread unless a test says more."""

from __future__ import annotations

from oracles.runs.evaluation_bench import one_thread

__all__ = ["one_thread"]
