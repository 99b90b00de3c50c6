"""Calibration of one method on labelled images: fitting, files, and calibrated answers.

The file is JSON with a checksum. Its map, conformal scores and confidences belong to the probabilities of one method
with one model, class list, prompt and view recipe, and it is rejected for any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

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
    Choice,
    Floats,
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

SHOWN = ("accuracy", "nll", "ece", "debiased_ece")


class Calibration(BaseModel):
    """Calibration of one method with one model and class list.

    Attributes:
        facts: plain data that it applies to: ``model``, ``method``, ``classes``, ``prompt``, ``views``,
            ``official_precision``.
        origin: description of the labelled images: data set, fingerprint, seed.
        labels: number of labelled images.
        map: map of probabilities, chosen by ``cross_validation`` (mean NLL of each candidate).
        reliability: held-out metrics before and after the map: {metric: [value, low,
            high]} each; bins: their reliability diagrams, ``counts``, ``confidence`` and ``accuracy``.
        scores: conformal scores of the true class, by kind of set and class index, in rising order.
        raps: ``penalty`` and ``free_ranks``.
        confidences: before the map, descending; correct: "1" for correct predictions, "0" for wrong ones.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[2] = 2
    facts: dict[str, Any] = Field(validation_alias=AliasChoices("for", "facts"), serialization_alias="for")
    origin: dict[str, Any] = {}
    labels: PositiveInt
    map: CalibrationMap
    cross_validation: dict[str, FiniteFloat]
    reliability: dict[str, dict[str, list[float]]]
    bins: dict[str, dict[str, list[int | FiniteFloat | None]]]
    scores: dict[str, dict[int, list[FiniteFloat]]] = {}
    raps: dict[str, Any] = {}
    confidences: list[FiniteFloat] = []
    correct: Annotated[str, Field(pattern="^[01]*$")] = ""

    def __repr__(self) -> str:
        nll = " → ".join(f"{own['nll'][0]:.3f}" for own in self.reliability.values())  # the criterion of the choice
        return f"Calibration({self.facts['method']['name']!r}, {self.map.words}, {self.labels} labels, NLL {nll})"

    __str__ = __repr__  # pydantic's would print every score

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names in label order."""
        return tuple(self.facts["classes"])

    @property
    def ranked(self) -> tuple[Floats, Booleans]:
        """Descending confidences (N,) and correct flags (N,)."""
        return np.array(self.confidences, np.float64), np.array([each == "1" for each in self.correct], np.bool_)

    @cached_property
    def digest(self) -> str:
        """Checksum of the values, independent of the file's formatting."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def diagram(self) -> dict[str, ReliabilityBins]:
        """Reliability bins before and after the map."""
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
        """Return plain data without the checksum."""
        return self.model_dump(mode="json", by_alias=True)

    def write(self, path: str | Path) -> None:
        """Write the file atomically."""
        write_atomically(Path(path), as_json({**self.as_dict(), "checksum": self.digest}))

    def check(self, facts: Mapping[str, Any]) -> None:
        """Raise unless ``facts`` match the calibration; only names of model and method may differ."""
        classes, others = (len(each["classes"]) for each in (self.facts, facts))
        if classes != others:
            raise OtptError(f"The calibration is for {classes} classes, not for these {others}; remove it.")
        own, other = dict(_leaves(self.facts)), dict(_leaves(facts))
        differing = [key for key in {**own, **other} if own.get(key) != other.get(key)]
        if set(differing) - {"model.name", "method.name"}:
            shown = ", ".join(f"{key} {own.get(key)!r} (not {other.get(key)!r})" for key in differing[:3])
            raise OtptError(
                f"The calibration is for {shown}; create one for these settings with 'otpt calibrate', or remove it."
            )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested data with their paths, such as ("method.numbers.steps", 1)."""
    if isinstance(value, Mapping | list | tuple):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(each, f"{path}.{key}".removeprefix("."))
    else:
        yield path, value


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file, or raise :class:`OtptError` if it is corrupt or of another version."""
    path = Path(path).expanduser()
    content = cast(dict[str, object], read_json(path, "calibration file"))
    try:
        found = Calibration.model_validate(content)
        if found.digest != content.get("checksum"):
            raise ValueError("its checksum is wrong")
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise OtptError(
            f"The file {str(path)!r} is not a calibration file of this version or is corrupt: {reason}; recreate it "
            "with 'otpt calibrate'."
        ) from error
    return found


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

    The map is fitted on all labels. Sets and risk use the probabilities **before** the map, so all labels are available
    for them as well and their guarantees are exact.

    Args:
        facts: see :class:`Calibration`; ``classes`` are required.
        origin: description of the labelled images.
        maps: candidates; see :func:`otpt.calibration.maps.choose_map`.
        penalty, free_ranks: λ and k of RAPS.
        n_bins: number of bins of the reported calibration errors.
    """
    checked, y = check_probabilities(probabilities, labels)
    classes, seen = list(facts["classes"]), np.unique(y)
    if len(classes) != checked.shape[1]:
        raise OtptError(f"expected probabilities of {len(classes)} classes, but got {checked.shape[1]}.")
    _check_labels(len(y), len(seen) > 1, f"All {len(y)} labels are of the class {classes[seen[0]]!r}")
    if not 0.0 <= penalty < np.inf or free_ranks < 0:
        raise OtptError(f"expected a RAPS penalty and ranks of 0 or more, but got {penalty!r} and {free_ranks!r}.")
    p = as_stored(checked)
    raps: dict[str, Any] = {"penalty": float(penalty), "free_ranks": free_ranks}
    scores = {kind: conformal_scores(kind, p, **raps)[np.arange(len(y)), y] for kind in SETS}  # of the true class
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    order = np.lexsort((~correct, -confidence))

    def metrics(values: Floats) -> dict[str, list[float]]:
        intervals = {name: bootstrap(name, values, y, n_bins=n_bins) for name in SHOWN}
        return {name: [own.estimate, own.low, own.high] for name, own in intervals.items()}

    def diagram(values: Floats) -> ReliabilityBins:
        return reliability_bins(values, y, n_bins=n_bins)

    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        **_fitted(p, choose_map(p, y, maps=maps), metrics, diagram),
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

    Platt scaling with one shared bias or one per label. Prediction sets and risk thresholds are not supported.
    """
    p, y = as_stored(probabilities), np.asarray(present, bool)
    _check_labels(len(y), bool(y.any() and not y.all()), "All labels are absent or all are present")

    def metrics(values: Floats) -> dict[str, list[float]]:
        return {name: list(own) for name, own in multi_label_intervals(values, y, n_bins=n_bins).items()}

    def diagram(values: Floats) -> ReliabilityBins:
        return reliability_bins(values.ravel(), y.ravel(), n_bins=n_bins)

    fitted = _fitted(p, choose_label_map(p, y), metrics, diagram)
    return Calibration(facts=dict(facts), origin=dict(origin or {}), labels=len(y), **fitted)


def _check_labels(count: int, differ: bool, problem: str) -> None:
    if count < LEAST_LABELS:
        raise OtptError(f"Got {count} labelled images; expected at least {LEAST_LABELS}, better hundreds.")
    if not differ:
        raise OtptError(f"{problem}; expected images of several classes.")


def _fitted(
    before: Floats,
    choice: Choice,
    metrics: Callable[[Floats], dict[str, list[float]]],
    diagram: Callable[[Floats], ReliabilityBins],
) -> dict[str, Any]:
    """Return the fields for the chosen map and its held-out reliability."""
    stages = {"before": before, "after": choice.held_out}
    bins: dict[str, dict[str, list[float | None]]] = {}
    for name, values in stages.items():
        found = diagram(values)
        columns = {"counts": found.counts, "confidence": found.confidence, "accuracy": found.accuracy}
        bins[name] = {key: [None if np.isnan(v) else v for v in own.tolist()] for key, own in columns.items()}
    return {
        "map": choice.map,
        "cross_validation": choice.nll,
        "reliability": {name: metrics(values) for name, values in stages.items()},
        "bins": bins,
    }


@dataclass(frozen=True)
class CalibratedAnswer:
    """Calibrated prediction of one image.

    Attributes:
        probabilities: (C,), summing to one.
        index: the predicted class.
        classes: the prediction set, most probable class first; None without a coverage.
        abstained: whether the method abstains; None without a risk.
    """

    probabilities: Floats
    index: int
    classes: tuple[int, ...] | None = None
    abstained: bool | None = None


@dataclass(frozen=True)
class Calibrated:
    """Calibration with the requested coverage and risk.

    Args:
        calibration: from a file or from :func:`fit_calibration`.
        coverage: probability that the prediction set contains the true class; None for no sets.
        sets: "lac", "aps" or "raps".
        mondrian: the coverage holds for each class separately.
        risk: largest fraction of errors among the answered images; None to answer all.
        guarantee: probability, over the draw of the labelled images, that the risk is met.
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
            raise OtptError("Coverage and risk need one label per image; the calibration is for several labels.")
        if self.coverage is None and self.mondrian:
            raise OtptError("Mondrian sets were requested without a coverage; set one, such as 0.9.")
        if self.coverage is not None and np.isinf(self.quantiles).all():
            raise OtptError(
                f"A coverage of {self.coverage:g} needs at least {labels_for(self.coverage)} labels"
                f"{' of a class' if self.mondrian else ''}, but the calibration has {self.calibration.labels} labels "
                f"of {len(self.quantiles)} classes; label more images, or lower the coverage."
            )
        if self.risk is not None and not self.calibration.map.keeps_label:
            raise OtptError(
                f"A risk was requested, but the map {self.calibration.map.kind!r} may change predictions; calibrate "
                "with a map that preserves them (temperature, beta or isotonic)."
            )
        _ = self.threshold  # fail early if the risk cannot be guaranteed

    @property
    def key(self) -> dict[str, Any]:
        """Plain data that determine the answers."""
        sets = {} if self.coverage is None else {"sets": self.sets, "mondrian": self.mondrian}
        risk = {} if self.risk is None else {"guarantee": self.guarantee}
        return {"digest": self.calibration.digest, "coverage": self.coverage, **sets, "risk": self.risk, **risk}

    @cached_property
    def threshold(self) -> RiskThreshold | None:
        """Confidence, before the map, above which an image is answered."""
        if self.risk is None:
            return None
        return risk_threshold(*self.calibration.ranked, risk=self.risk, guarantee=self.guarantee)

    @cached_property
    def quantiles(self) -> Floats:
        """Largest score (C,) of a class in a set."""
        assert self.coverage is not None
        classes, scores = len(self.calibration.class_names), self.calibration.scores[self.sets]
        if self.mondrian:
            own = [np.array(scores.get(c, ()), np.float64) for c in range(classes)]
            return np.array([conformal_quantile(each, self.coverage) for each in own])
        together = np.concatenate([np.array(each) for each in scores.values()])
        return np.full(classes, conformal_quantile(together, self.coverage))

    @property
    def always_in(self) -> int:
        """Number of classes in every Mondrian set because they have too few labels."""
        return 0 if self.coverage is None else int(np.isinf(self.quantiles).sum())

    def answer(self, probabilities: npt.NDArray[Any], index: int | None = None) -> CalibratedAnswer:
        """Calibrate one image's probabilities (C,); ``index`` is the method's prediction where classes tie.

        The set always contains the predicted class, even if ties or the map change the argmax.
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
