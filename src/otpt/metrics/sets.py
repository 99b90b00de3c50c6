"""Prediction sets and abstention on labelled images: how often the set holds the label, and how large it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from otpt.metrics._inputs import BoolArray, FloatArray
from otpt.metrics.binomial import clopper_pearson

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class SetMetrics:
    """What was asked of a calibration, measured. Fractions are between 0 and 1; None where nothing was asked.

    Attributes:
        coverage: fraction of images whose set holds the label; coverage_interval: Clopper–Pearson, of 95 %.
        set_size: mean number of classes in a set; singletons: fraction of sets with one class.
        answered: fraction of images that are answered.
        risk: fraction of errors among these, None without an answer; risk_interval: as that of the coverage.
    """

    coverage: float | None = None
    coverage_interval: tuple[float, float] | None = None
    set_size: float | None = None
    singletons: float | None = None
    answered: float | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data; what was not asked for is left out."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def set_metrics(
    correct: npt.NDArray[Any],
    *,
    covered: BoolArray | None = None,
    sizes: FloatArray | None = None,
    answered: BoolArray | None = None,
) -> SetMetrics:
    """Of (N,) flags whether a prediction is right, whether its set holds the label, and whether it was answered.

    >>> set_metrics(np.array([True, False]), answered=np.array([True, False])).risk
    0.0
    """
    found: dict[str, Any] = {}
    if covered is not None and sizes is not None:
        hits = int(np.sum(covered))
        found["coverage"], found["coverage_interval"] = hits / len(covered), clopper_pearson(hits, len(covered))
        found["set_size"], found["singletons"] = float(np.mean(sizes)), float(np.mean(sizes == 1))
    if answered is not None:
        count = int(np.sum(answered))
        found["answered"] = count / len(answered)
        if count:
            wrong = int(np.sum(answered & ~correct))
            found["risk"], found["risk_interval"] = wrong / count, clopper_pearson(wrong, count)
    return SetMetrics(**found)
