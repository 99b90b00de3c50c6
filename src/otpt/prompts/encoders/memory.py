"""How much memory text graphs may take."""

MEMORY_BUDGET = 2 * 1024**3
"""Bytes that text graphs may take by default. A constant, not the free memory: chunk sizes affect rounding, and
results must not depend on the load of the machine."""
