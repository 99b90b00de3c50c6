"""The conformal quantile: the ⌈(n + 1)·coverage⌉-th smallest of n scores.

With q̂ this number, a new image exchangeable with the n labelled ones has P(s(x, y) ≤ q̂) ≥ coverage: its score is
equally likely to take any of the n + 1 ranks.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from otpt.calibration.maps.inputs import Floats
from otpt.errors import OtptError


def conformal_quantile(scores: Floats, coverage: float) -> float:
    """q̂ of n scores (n,); infinity, which every class is below, where n is too small.

    >>> conformal_quantile(np.arange(1.0, 10.0), 0.9), conformal_quantile(np.arange(1.0, 9.0), 0.9)
    (9.0, inf)
    """
    rank = math.ceil((len(scores) + 1) * _as_written(coverage))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def labels_for(coverage: float) -> int:
    """How many labels a finite quantile takes at least.

    >>> labels_for(0.9), labels_for(0.95), labels_for(0.99)
    (9, 19, 99)
    """
    fraction = _as_written(coverage)
    return math.ceil(fraction / (1 - fraction))


def _as_written(coverage: float) -> Fraction:
    """0.9 as it is written, not as it is stored; checked."""
    check_fraction("coverage", coverage, such_as="0.9")
    return Fraction(str(float(coverage)))


def check_fraction(name: str, value: Any, *, such_as: str) -> None:
    """Refuse what is no number strictly between 0 and 1."""
    if not isinstance(value, int | float | np.number) or not 0.0 < value < 1.0:
        raise OtptError(f"expected {name} between 0 and 1, both excluded, but got {value!r}; such as {such_as}.")
