"""Apply a calibration: calibrated probabilities, prediction sets, and abstention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from otpt.calibration.file import Calibration
from otpt.calibration.maps import Floats, as_stored
from otpt.calibration.risk import RiskThreshold, risk_threshold
from otpt.calibration.sets import SETS, conformal_quantile, conformal_scores, labels_for
from otpt.errors import OtptError, unknown


@dataclass(frozen=True)
class CalibratedAnswer:
    """A calibrated prediction of one image.

    Attributes:
        probabilities: (C,), summing to one.
        index: the predicted class.
        classes: the prediction set, most probable class first; None without a coverage.
        abstained: whether the image is not answered; None without a risk.
    """

    probabilities: Floats
    index: int
    classes: tuple[int, ...] | None = None
    abstained: bool | None = None


@dataclass(frozen=True)
class Calibrated:
    """A calibration with the requested coverage and risk.

    Args:
        calibration: from a file or from :func:`fit_calibration`.
        coverage: probability with which the prediction set is to hold the true class; None for no sets.
        sets: "lac", "aps" or "raps".
        mondrian: the coverage holds for each class separately.
        risk: largest fraction of errors among the answered images; None to answer all.
        guarantee: probability, over the draw of the labelled images, with which the risk is held.
    """

    calibration: Calibration
    coverage: float | None = None
    sets: str = "aps"
    mondrian: bool = False
    risk: float | None = None
    guarantee: float = 0.95

    def __post_init__(self) -> None:
        if self.sets not in SETS:
            raise unknown("kind of prediction sets", self.sets, SETS)
        if self.coverage is not None:
            self._check_labels(self.coverage)
        elif self.mondrian:
            raise OtptError("Sets per class (Mondrian) were requested without a coverage; give one, such as 0.9.")
        if self.risk is not None and not self.calibration.map.keeps_label:
            raise OtptError(
                f"A risk was requested, but the map {self.calibration.map.kind!r} may change labels, and errors were "
                "counted without it; calibrate without that map (temperature, beta or isotonic keep the label)."
            )
        _ = self.threshold  # raises if the risk cannot be held

    @property
    def key(self) -> dict[str, Any]:
        """Everything that decides the answers, as plain data."""
        sets = {} if self.coverage is None else {"sets": self.sets, "mondrian": self.mondrian}
        risk = {} if self.risk is None else {"guarantee": self.guarantee}
        return {"digest": self.calibration.digest, "coverage": self.coverage, **sets, "risk": self.risk, **risk}

    @cached_property
    def threshold(self) -> RiskThreshold | None:
        """Above which confidence, before the map, an image is answered."""
        if self.risk is None:
            return None
        return risk_threshold(*self.calibration.ranked, risk=self.risk, guarantee=self.guarantee)

    @cached_property
    def quantiles(self) -> Floats:
        """The largest score with which each class is in a set, (C,)."""
        assert self.coverage is not None
        classes, scores = len(self.calibration.class_names), self.calibration.scores[self.sets]
        if self.mondrian:
            own = [np.array(scores.get(c, ()), np.float64) for c in range(classes)]
            return np.array([conformal_quantile(each, self.coverage) for each in own])
        # without any score every class is in the set
        together = np.concatenate([np.zeros(0), *(np.array(each) for each in scores.values())])
        return np.full(classes, conformal_quantile(together, self.coverage))

    @property
    def always_in(self) -> int:
        """Classes with too few labels for the coverage, which are in every set of Mondrian prediction."""
        return 0 if self.coverage is None else int(np.isinf(self.quantiles).sum())

    def answer(self, probabilities: npt.NDArray[Any], index: int | None = None) -> CalibratedAnswer:
        """Of one image's probabilities (C,) as the method gives them; ``index`` is its prediction, if some tie.

        The predicted class is always in the set, also where ties or the map make it another than the first of the
        largest probabilities.
        """
        raw = as_stored(probabilities)
        calibrated = self.calibration.map(raw)
        first = int(raw.argmax()) if index is None else index
        index = first if self.calibration.map.keeps_label else int(calibrated.argmax())
        classes = None
        if self.coverage is not None:
            inside = {index, *np.flatnonzero(self.contained(raw[None])[0]).tolist()}
            classes = tuple(sorted(inside, key=lambda c: (-calibrated[c], c)))
        abstained = None if self.threshold is None else not self.threshold.answers(float(raw.max()))
        return CalibratedAnswer(calibrated, index, classes, abstained)

    def contained(self, probabilities: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether a class is in the set of an image: (N, C) → (N, C). The most probable class always is."""
        raw = as_stored(probabilities)
        raps = self.calibration.raps
        scores = conformal_scores(self.sets, raw, penalty=raps.penalty, free_ranks=raps.free_ranks)
        found = scores <= self.quantiles
        found[np.arange(len(raw)), raw.argmax(axis=1)] = True
        return np.asarray(found)

    def _check_labels(self, coverage: float) -> None:
        needed, classes, n = labels_for(coverage), len(self.calibration.class_names), self.calibration.labels
        if n < needed:
            raise OtptError(
                f"A coverage of {coverage:g} needs at least {needed} labels, but the calibration has {n}; label more "
                "images, or ask for less."
            )
        if self.mondrian and n < classes:
            raise OtptError(
                f"Sets per class (Mondrian) need labels of every class, but the calibration has {n} labels of "
                f"{classes} classes; label more images, or leave it out."
            )
        if self.mondrian and math.isinf(float(self.quantiles.min())):
            raise OtptError(
                f"Sets per class (Mondrian) with a coverage of {coverage:g} need {needed} labels of a class, which no "
                f"class of the calibration has ({n} labels of {classes} classes); label more images, or leave it out."
            )
