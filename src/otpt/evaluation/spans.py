"""Time spans in words; without torch, for commands that only plan."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time span in the two largest units.

    >>> duration(3725)
    '1 h 2 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
