"""Simulated runs."""

from oracles.runs.report_bench import opened, results, runs

__all__ = ["opened", "results", "runs"]
