"""Prediction sets and abstention: what the rows say of them, where a method makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otpt.metrics import percent
from otpt.runs import Rows

SET_SIZE, COVERED, ANSWERED = "set_size", "covered", "answered"
"""Columns of the rows, as the extras of a method are stored."""

ABSTAINED = "abstained"
"""Flag of an image that PromptSmooth's votes leave open."""


@dataclass(frozen=True)
class SetNumbers:
    """Prediction sets and abstention of a method on a data set; None where a method has neither.

    Attributes:
        size: mean number of classes in a set.
        coverage: fraction of images whose set holds the true class.
        abstained: fraction of images that are not answered.
        answered: accuracy on the others; None if there are none.
    """

    size: float | None
    coverage: float | None
    abstained: float | None
    answered: float | None

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """As they are shown."""
        rates = (self.coverage, self.abstained, self.answered)
        coverage, abstained, answered = ("–" if rate is None else percent(rate) for rate in rates)
        return "–" if self.size is None else f"{self.size:.2f}", coverage, abstained, answered


def set_numbers(rows: Rows) -> SetNumbers | None:
    """What the rows hold; None if they hold no sets and no abstention."""
    size, covered = (_column(rows, name) for name in (SET_SIZE, COVERED))
    abstained = _abstained(rows)
    if size is None and covered is None and abstained is None:
        return None
    kept = None if abstained is None else rows.correct[~abstained]
    return SetNumbers(
        size=None if size is None else float(np.nanmean(size)),
        coverage=None if covered is None else float(np.nanmean(covered)),
        abstained=None if abstained is None else float(abstained.mean()),
        answered=float(kept.mean()) if kept is not None and len(kept) else None,
    )


def _column(rows: Rows, name: str) -> npt.NDArray[np.float64] | None:
    """(N,) an extra of the rows, nan where an image has none; None if no image has it."""
    if name not in rows.table.column_names:
        return None
    found = np.array([np.nan if value is None else float(value) for value in rows.table[name].to_pylist()])
    return found if np.isfinite(found).any() else None


def _abstained(rows: Rows) -> npt.NDArray[np.bool_] | None:
    column = _column(rows, ANSWERED)
    if column is not None:
        return column == 0
    flagged = np.array([ABSTAINED in (flags or ()) for flags in rows.table["flags"].to_pylist()], dtype=bool)
    return flagged if flagged.any() else None
