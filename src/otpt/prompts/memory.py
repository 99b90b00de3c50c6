"""How much memory text graphs may take."""

MEMORY_BUDGET = 2 * 1024**3
"""Bytes that text graphs may take by default. A constant, not what happens to be free: chunks shape the rounding, and
results may not depend on the machine's load."""
