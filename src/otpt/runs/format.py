"""The format of run folders, and which metrics their rows can answer."""

from __future__ import annotations

FORMAT = 2
FEATURE_TYPES = ("full", "float16")
VIEW_KEYS = ("pixels", "file")
"""What keys the views of an image (:data:`otpt.images.KEYS`)."""
MAX_BINS = 100
SIDES = ("right", "left")


def check_bins(bins: int, side: str) -> None:
    """What the stored rows can answer: probabilities of one percent and more are kept one by one."""
    from otpt.metrics.inputs import check_bins as check  # numpy, which is not needed to read the constants above

    check(bins, side, most=MAX_BINS)
