"""Benchmarks: ratios of two ways, measured in one run."""
