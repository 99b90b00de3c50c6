"""How many views a fraction of them is. Without torch: configurations of methods count views too."""

from __future__ import annotations


def fraction_of(views: int, fraction: float) -> int:
    """int(V·fraction), at least one: 6 of 64 at 10 %."""
    return max(int(views * fraction), 1)
