"""A calibration of one method from labelled images: fitting, its file, and calibrated answers.

The file is JSON with a checksum. It says what it was made for (model, method, classes, prompt, views), and is refused
for anything else: the map, the conformal scores and the confidences in it are those of one method's probabilities.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt

from otpt.calibration.conformal import (
    FREE_RANKS,
    PENALTY,
    SETS,
    RiskThreshold,
    conformal_quantile,
    conformal_scores,
    labels_for,
    risk_threshold,
)
from otpt.calibration.maps import (
    LEAST_LABELS,
    Booleans,
    CalibrationMap,
    Floats,
    Integers,
    as_stored,
    choose_label_map,
    choose_map,
)
from otpt.errors import OtptError, unknown
from otpt.files import as_json, read_json, write_atomically
from otpt.metrics import ReliabilityBins, bootstrap, reliability_bins
from otpt.metrics.binned import bin_edges
from otpt.metrics.inputs import check_probabilities
from otpt.metrics.multi_label import multi_label_intervals

FORMAT = 2
SHOWN = ("accuracy", "nll", "ece", "debiased_ece")
_WHAT = "calibration file"


class Calibration(BaseModel):
    """What labelled images showed of one method with one model and class list.

    Attributes:
        facts: what it is for, as plain data: ``model``, ``method``, ``classes``, ``prompt``, ``views``,
            ``official_precision``.
        origin: the labelled images, for people: data set, its fingerprint, seed.
        labels: their number.
        map: of probabilities, chosen by ``cross_validation`` (mean NLL of each candidate).
        reliability: metrics before and after the map, on images that it was not fitted on: {metric: [value, low,
            high]} each; bins: their reliability diagrams, ``counts``, ``confidence`` and ``accuracy``.
        scores: conformal scores of the true class, by kind of set and class index, in rising order.
        raps: ``penalty`` and ``free_ranks``.
        confidences: before the map, falling; correct: "1" where the prediction is correct, "0" where it is wrong.
    """

    model_config = ConfigDict(frozen=True)

    facts: dict[str, Any] = Field(validation_alias=AliasChoices("for", "facts"), serialization_alias="for")
    origin: dict[str, Any] = {}
    labels: PositiveInt
    map: CalibrationMap
    cross_validation: dict[str, FiniteFloat]
    reliability: dict[str, dict[str, list[float]]]
    bins: dict[str, dict[str, list[int | FiniteFloat | None]]]
    scores: dict[str, dict[int, list[FiniteFloat]]]
    raps: dict[str, Any]
    confidences: list[FiniteFloat]
    correct: Annotated[str, Field(pattern="^[01]*$")]

    def __repr__(self) -> str:
        nll = " → ".join(f"{own['nll'][0]:.3f}" for own in self.reliability.values())  # which the map was chosen by
        return f"Calibration({self.facts['method']['name']!r}, {self.map.words}, {self.labels} labels, NLL {nll})"

    __str__ = __repr__  # pydantic's would print every score

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class list, in label order."""
        return tuple(self.facts["classes"])

    @property
    def ranked(self) -> tuple[Floats, Booleans]:
        """(N,) confidences, falling, and whether these predictions are correct."""
        return np.array(self.confidences, np.float64), np.array([each == "1" for each in self.correct], np.bool_)

    @cached_property
    def digest(self) -> str:
        """Checksum of the whole content."""
        return _checksum(self.as_dict())

    @property
    def diagram(self) -> dict[str, ReliabilityBins]:
        """The reliability diagrams before and after the map."""
        return {
            name: ReliabilityBins(
                bin_edges(len(own["counts"])),
                np.array(own["counts"], np.int64),
                np.array(own["accuracy"], np.float64),
                np.array(own["confidence"], np.float64),
                self.labels,
            )
            for name, own in self.bins.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without the checksum."""
        return {"format": FORMAT, **self.model_dump(mode="json", by_alias=True)}

    def write(self, path: str | Path) -> None:
        """Write the file atomically."""
        content = self.as_dict()
        write_atomically(Path(path), as_json({**content, "checksum": _checksum(content)}))

    def check(self, facts: Mapping[str, Any]) -> None:
        """Raise unless ``facts`` are those that the calibration was made for; see :attr:`facts`."""
        for key in ("model", "method", "classes", "prompt", "views", "official_precision"):
            own, other = self.facts[key], facts[key]
            decides = {"model": "fingerprint", "method": "numbers"}.get(key)
            same = own[decides] == other[decides] if decides else own == other
            if not same:
                raise OtptError(
                    f"The calibration was made for {_difference(key, own, other)}; make one for these with 'otpt "
                    "calibrate', or leave it out."
                )


def _difference(key: str, own: Any, other: Any) -> str:
    """Where two facts differ, such as "the method 'tpt', not for 'o-tpt'"."""
    if key == "model":
        return "the model {}, not for {}".format(*(f"{m['name']!r} ({m['fingerprint'][:8]})" for m in (own, other)))
    if key == "method" and own["name"] != other["name"]:
        return f"the method {own['name']!r}, not for {other['name']!r}"
    if key == "method":
        mine, wanted = own["numbers"], other["numbers"]
        name = next(each for each in {**mine, **wanted} if mine.get(each) != wanted.get(each))
        return f"the method {own['name']!r} with {name} = {mine.get(name)!r}, not with {wanted.get(name)!r}"
    if key == "classes":
        pairs = enumerate(zip(own, other, strict=False))
        where = next((f" (class {i} is {a!r}, not {b!r})" for i, (a, b) in pairs if a != b), "")
        return f"{len(own)} classes, not for these {len(other)}{where}"
    return f"{key.replace('_', ' ')} {own!r}, not for {other!r}"


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; :class:`OtptError` if it is corrupt or of another version."""
    path = Path(os.path.expanduser(path))
    content = read_json(path, _WHAT)
    if not isinstance(content, dict) or "checksum" not in content or "format" not in content:
        raise OtptError(f"The file {str(path)!r} is not a {_WHAT}; expected one that 'otpt calibrate' wrote.")
    if content["format"] != FORMAT:
        raise OtptError(
            f"The {_WHAT} {str(path)!r} has format {content['format']!r}, but this version of otpt reads {FORMAT}; "
            "make it again with 'otpt calibrate'."
        )
    checksum = content.pop("checksum")
    try:
        if checksum != _checksum(content):
            raise ValueError("its checksum is wrong")
        return Calibration.model_validate(content)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise OtptError(
            f"The {_WHAT} {str(path)!r} is damaged: {reason}; make it again with 'otpt calibrate'."
        ) from error


def _checksum(content: Mapping[str, Any]) -> str:
    """Checksum of the values, however the file is formatted."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def fit_calibration(
    probabilities: npt.NDArray[Any],
    labels: npt.NDArray[Any] | Sequence[int],
    facts: Mapping[str, Any],
    *,
    origin: Mapping[str, Any] | None = None,
    maps: Sequence[str] | None = None,
    penalty: float = PENALTY,
    free_ranks: int = FREE_RANKS,
    n_bins: int = 20,
) -> Calibration:
    """Fit a calibration to a method's probabilities (N, C) and labels (N,).

    The map is fitted on all labels. Sets and risk are counted on the probabilities **before** the map, so that all
    labels serve them too and their guarantees are exact: a map that has seen the labels would spoil them.

    Args:
        facts: what the calibration is for; ``classes`` are needed.
        origin: where the labels come from, for people.
        maps: candidates; see :func:`otpt.calibration.maps.choose_map`.
        penalty, free_ranks: λ and k of RAPS.
        n_bins: of the calibration errors that are shown.
    """
    checked, y = check_probabilities(probabilities, labels)
    classes, seen = list(facts["classes"]), np.unique(y)
    if len(classes) != checked.shape[1]:
        raise OtptError(f"expected probabilities of {len(classes)} classes, but got {checked.shape[1]}.")
    if len(y) < LEAST_LABELS:
        raise OtptError(
            f"{len(y)} labelled images were given, too few for a calibration; expected at least {LEAST_LABELS}, better "
            "hundreds."
        )
    if len(seen) == 1:
        raise OtptError(f"All {len(y)} labels are of the class {classes[seen[0]]!r}; expected at least two classes.")
    if not 0.0 <= penalty < np.inf or free_ranks < 0:
        raise OtptError(f"expected a RAPS penalty and ranks of 0 or more, but got {penalty!r} and {free_ranks!r}.")
    p = as_stored(checked)
    choice = choose_map(p, y, maps=maps)
    stages = {"before": p, "after": choice.held_out}
    raps: dict[str, Any] = {"penalty": float(penalty), "free_ranks": free_ranks}
    scores = {kind: conformal_scores(kind, p, **raps)[np.arange(len(y)), y] for kind in SETS}  # of the true class
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    order = np.lexsort((~correct, -confidence))
    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        map=choice.map,
        cross_validation=choice.nll,
        reliability={name: _metrics(each, y, n_bins) for name, each in stages.items()},
        bins={name: _diagram(each, y, n_bins) for name, each in stages.items()},
        scores={
            kind: {int(label): np.sort(own[y == label]).tolist() for label in seen} for kind, own in scores.items()
        },
        raps=raps,
        confidences=confidence[order].tolist(),
        correct="".join("1" if each else "0" for each in correct[order]),
    )


def fit_label_calibration(
    probabilities: npt.NDArray[Any],
    present: npt.NDArray[Any],
    facts: Mapping[str, Any],
    *,
    origin: Mapping[str, Any] | None = None,
    n_bins: int = 15,
) -> Calibration:
    """Fit a calibration to probabilities (N, C) of independent labels, of which some are ``present`` (N, C).

    Platt scaling with one bias or one for each label. It has no scores for sets and no confidences for a risk.
    """
    p, y = as_stored(probabilities), np.asarray(present, bool)
    if len(y) < LEAST_LABELS:
        raise OtptError(f"{len(y)} labelled images were given; expected at least {LEAST_LABELS}, better hundreds.")
    if not y.any() or y.all():
        raise OtptError("All labels are absent or all are there; expected images with and without some of them.")
    choice = choose_label_map(p, y)
    stages = {"before": p, "after": choice.held_out}
    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        map=choice.map,
        cross_validation=choice.nll,
        reliability={
            name: {metric: list(own) for metric, own in multi_label_intervals(each, y, n_bins=n_bins).items()}
            for name, each in stages.items()
        },
        bins={name: _diagram(each.ravel(), y.ravel(), n_bins) for name, each in stages.items()},
        scores={},
        raps={},
        confidences=[],
        correct="",
    )


def _metrics(probabilities: Floats, labels: Integers, n_bins: int) -> dict[str, list[float]]:
    intervals = {name: bootstrap(name, probabilities, labels, n_bins=n_bins) for name in SHOWN}
    return {name: [own.estimate, own.low, own.high] for name, own in intervals.items()}


def _diagram(probabilities: Floats, labels: npt.NDArray[Any], n_bins: int) -> dict[str, list[float | None]]:
    found = reliability_bins(probabilities, labels, n_bins=n_bins)
    columns = {"counts": found.counts, "confidence": found.confidence, "accuracy": found.accuracy}
    return {name: [None if np.isnan(v) else v for v in own.tolist()] for name, own in columns.items()}


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
        if not self.calibration.scores and (self.coverage is not None or self.risk is not None):
            raise OtptError("The calibration is one of several labels; a coverage or a risk needs one label per image.")
        if self.coverage is None and self.mondrian:
            raise OtptError("Sets per class (Mondrian) were requested without a coverage; give one, such as 0.9.")
        if self.coverage is not None:
            needed, n = labels_for(self.coverage), self.calibration.labels
            if n < needed:
                raise OtptError(
                    f"A coverage of {self.coverage:g} needs at least {needed} labels, but the calibration has {n}; "
                    "label more images, or ask for less."
                )
            if self.mondrian and np.isinf(self.quantiles).all():
                raise OtptError(
                    f"Sets per class (Mondrian) with a coverage of {self.coverage:g} need {needed} labels of a class, "
                    f"but the calibration has {n} labels of {len(self.quantiles)} classes; label more images, or leave "
                    "it out."
                )
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
        first = int(raw.argmax())
        if not self.calibration.map.keeps_label:
            index = int(calibrated.argmax())
        index = first if index is None else index
        classes = None
        if self.coverage is not None:
            scores = conformal_scores(self.sets, raw[None], **self.calibration.raps)[0]
            inside = {first, index, *np.flatnonzero(scores <= self.quantiles).tolist()}
            classes = tuple(sorted(inside, key=lambda c: (-calibrated[c], c)))
        abstained = None if self.threshold is None else not self.threshold.answers(float(raw.max()))
        return CalibratedAnswer(calibrated, index, classes, abstained)
