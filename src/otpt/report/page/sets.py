"""Prediction sets and abstention: what the rows say of them, where a method makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otpt.metrics import percent
from otpt.metrics.sets import SetMetrics, set_metrics
from otpt.report.tables.table import NOTHING
from otpt.runs import Rows

SET_SIZE, COVERED, ANSWERED, UNKNOWN = "set_size", "covered", "answered", "unknown"
"""Columns of the rows, as the extras of a method are stored."""

ABSTAINED, REJECTED = "abstained", "rejected"
"""Flags of an image that PromptSmooth's votes leave open, and of one that fits none of the classes."""


@dataclass(frozen=True)
class SetNumbers:
    """Prediction sets and abstention of a method on a data set; None where a method has neither.

    Attributes:
        measured: coverage, size of the sets and risk, with their intervals.
        rejected: fraction of images that fit none of the classes.
    """

    measured: SetMetrics
    rejected: float | None

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        """Classes per set, coverage, abstained, accuracy of the rest, none of these; as they are shown."""
        own = self.measured
        size = NOTHING if own.set_size is None else f"{own.set_size:.2f}"
        abstained = NOTHING if own.answered is None else percent(1 - own.answered)
        right = None if own.risk is None else 1 - own.risk
        around = None if own.risk_interval is None else (1 - own.risk_interval[1], 1 - own.risk_interval[0])
        rejected = NOTHING if self.rejected is None else percent(self.rejected)
        return size, _within(own.coverage, own.coverage_interval), abstained, _within(right, around), rejected


def set_numbers(rows: Rows) -> SetNumbers | None:
    """What the rows hold; None if they hold no sets, no abstention and no rejection."""
    size, covered = _column(rows, SET_SIZE), _column(rows, COVERED)
    abstained = _abstained(rows)
    rejected = None if _column(rows, UNKNOWN) is None else float(_flagged(rows, REJECTED).mean())
    if size is None and covered is None and abstained is None and rejected is None:
        return None
    has = None if covered is None else np.isfinite(covered)
    measured = set_metrics(
        rows.correct,
        covered=None if covered is None else covered[has] == 1,
        sizes=None if size is None else size[has],
        answered=None if abstained is None else ~abstained,
    )
    return SetNumbers(measured, rejected)


def _within(value: float | None, interval: tuple[float, float] | None) -> str:
    """A fraction with its 95 % interval."""
    if value is None or interval is None:
        return NOTHING
    return f"{percent(value)} ({percent(interval[0], 1)}–{percent(interval[1], 1)})"


def _column(rows: Rows, name: str) -> npt.NDArray[np.float64] | None:
    """(N,) an extra of the rows, nan where an image has none; None if no image has it."""
    found = rows.extra(name)
    return found if found is not None and np.isfinite(found).any() else None


def _flagged(rows: Rows, flag: str) -> npt.NDArray[np.bool_]:
    """(N,) whether an image has the flag."""
    return np.array([flag in (flags or ()) for flags in rows.table["flags"].to_pylist()], dtype=bool)


def _abstained(rows: Rows) -> npt.NDArray[np.bool_] | None:
    column = _column(rows, ANSWERED)
    if column is not None:
        return column == 0
    flagged = _flagged(rows, ABSTAINED)
    return flagged if flagged.any() else None
