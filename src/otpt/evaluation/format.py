"""The format of run folders, and which metrics their rows can answer. Light: reading a run needs no model."""

from __future__ import annotations

from otpt.errors import OtptError, unknown

FORMAT = 1
FEATURE_TYPES = ("full", "float16")
MAX_BINS = 100
SIDES = ("right", "left")


def check_bins(bins: int, side: str) -> None:
    """What the stored rows can answer: probabilities of one percent and more are kept one by one."""
    if not 1 <= bins <= MAX_BINS:
        raise OtptError(f"The number of bins is {bins}; expected 1 to {MAX_BINS}.")
    if side not in SIDES:
        raise unknown("side of the bins", side, SIDES)
