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
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError

from otpt.arguments import checked
from otpt.calibration.arrays import Booleans, Floats, Integers
from otpt.calibration.conformal import (
    FREE_RANKS,
    PENALTY,
    SETS,
    RiskThreshold,
    check_fraction,
    conformal_quantile,
    conformal_scores,
    labels_for,
    risk_threshold,
)
from otpt.calibration.maps import (
    LEAST_LABELS,
    CalibrationMap,
    Choice,
    as_stored,
    choose_label_map,
    choose_map,
)
from otpt.errors import OtptError, describe_error, unknown
from otpt.files import Json, as_json, read_json, write_atomically
from otpt.metrics import METRICS, ReliabilityBins, bootstrap, reliability_bins
from otpt.metrics.binned import bin_edges
from otpt.metrics.inputs import Values, check_bins, check_probabilities
from otpt.metrics.multi_label import METRICS as LABEL_METRICS
from otpt.metrics.multi_label import OF_ONE_LABEL, check_labels_present, multi_label_intervals
from otpt.records import describe_mistake

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("accuracy", "nll", "ece", "debiased_ece")
"""Reported metrics of a calibration with one label per image."""

_COLUMNS = ("", "_low", "_high")
StageMetrics: TypeAlias = dict[str, list[float]]
StageBins: TypeAlias = dict[str, list[int | FiniteFloat | None]]


class Estimate(NamedTuple):
    """Value of a metric with its 95 % interval."""

    value: float
    low: float
    high: float


class HeldOutMetric(NamedTuple):
    """Metric of held-out images before and after the map.

    Attributes:
        name: name of the metric, such as "ece".
        title: title such as "ECE %"; values of a title with "%" are percentages.
        before, after: estimates in the unit of the title.
    """

    name: str
    title: str
    before: Estimate
    after: Estimate

    def cells(self) -> tuple[str, str, str, str]:
        """Format the value and the interval before the map, then both after it."""
        return (
            self._value(self.before),
            self._interval(self.before),
            self._value(self.after),
            self._interval(self.after),
        )

    def words(self) -> tuple[str, str]:
        """Format the values before and after the map with their title, such as "ECE 4.21 %"."""
        name, percent, _ = self.title.partition(" %")
        return f"{name} {self._value(self.before)}{percent}", f"{name} {self._value(self.after)}{percent}"

    def _value(self, estimate: Estimate) -> str:
        return f"{estimate.value:.{self._digits}f}"

    def _interval(self, estimate: Estimate) -> str:
        return f"{estimate.low:.{self._digits}f} … {estimate.high:.{self._digits}f}"

    @property
    def _digits(self) -> int:
        return 2 if self.title.endswith("%") else 4


class Calibration(BaseModel):
    """Calibration of one method with one model and class list.

    There is one label per image, or there are several independent labels (``multi_label``), of which one is a special
    case. Calibrations are equal if their values are; ``print`` shows the map and its effect on the NLL.

    Attributes:
        facts: plain data that it applies to: ``model``, ``method``, ``classes``, ``prompt``, ``views``,
            ``official_precision``.
        origin: description of the labelled images: data set, fingerprint, seed.
        labels: number of labelled images.
        map: map of probabilities, chosen by ``cross_validation`` (mean NLL of each candidate).
        reliability: held-out metrics ``before`` and ``after`` the map, {metric: [value, low, high]} each; see
            :attr:`held_out`.
        bins: their reliability diagrams, ``counts``, ``confidence`` and ``accuracy``; see :attr:`diagram`.
        scores: conformal scores of the true class, by kind of set and class index, in rising order; empty for several
            labels, like ``raps``, ``confidences`` and ``correct``.
        raps: ``penalty`` and ``free_ranks``.
        confidences: before the map, descending; correct: "1" for correct predictions, "0" for wrong ones.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[2] = 2
    # plain data in the shape of the method and its init, compared value by value
    facts: dict[str, Any] = Field(validation_alias=AliasChoices("for", "facts"), serialization_alias="for")
    origin: dict[str, object] = {}
    labels: PositiveInt
    map: CalibrationMap
    cross_validation: dict[str, FiniteFloat]
    reliability: dict[str, StageMetrics]
    bins: dict[str, StageBins]
    scores: dict[str, dict[int, list[FiniteFloat]]] = {}
    raps: dict[str, int | float] = {}
    confidences: list[FiniteFloat] = []
    correct: Annotated[str, Field(pattern="^[01]*$")] = ""

    def __repr__(self) -> str:
        before, after = self.nll
        shown = f"{self.map.words}, {self.labels} labels, NLL {before:.3f} → {after:.3f}"
        return f"Calibration({self.method!r}, {shown})"

    __str__ = __repr__  # pydantic's would print every score

    def _repr_html_(self) -> str:
        rows = [(metric.title, *metric.cells()) for metric in self.held_out]
        heading = ("held-out images", "before", "95 %", "after", "95 %")
        table = _html_row("th", heading) + "".join(_html_row("td", row) for row in rows)
        return f"<p>{escape(repr(self))}</p><table>{table}</table>"

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Calibration) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy, optionally with other values, whose digest is computed again."""
        copied = super().model_copy(update=update, deep=deep)
        vars(copied).pop("digest", None)
        return copied

    @property
    def multi_label(self) -> bool:
        """Whether the labels of an image are independent."""
        return self.map.multi_label

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names in label order."""
        return _class_names(self.facts)

    @property
    def method(self) -> str:
        """Name of the calibrated method, or "" if the facts have none."""
        return str(self.facts.get("method", {}).get("name", ""))

    @property
    def model(self) -> str:
        """Name of the model, or "" if the facts have none."""
        return str(self.facts.get("model", {}).get("name", ""))

    @property
    def held_out(self) -> tuple[HeldOutMetric, ...]:
        """Reported metrics of held-out images before and after the map."""
        if not self.multi_label:
            titles = {name: METRICS[name].heading for name in SHOWN}
        elif len(self.class_names) == 1:
            titles = OF_ONE_LABEL
        else:
            titles = {name: title for name, (title, _) in LABEL_METRICS.items()}
        return tuple(self._held_out(name, title) for name, title in titles.items())

    def _held_out(self, name: str, title: str) -> HeldOutMetric:
        stored_as_fraction = title.endswith("%") and not self.multi_label
        scale = 100.0 if stored_as_fraction else 1.0
        before, after = (
            Estimate(*(scale * number for number in self.reliability[stage][name])) for stage in ("before", "after")
        )
        return HeldOutMetric(name, title, before, after)

    @property
    def nll(self) -> tuple[float, float]:
        """Negative log-likelihood of held-out images before and after the map, the criterion of its choice."""
        metric = "label_nll" if self.multi_label else "nll"
        return self.reliability["before"][metric][0], self.reliability["after"][metric][0]

    @property
    def ranked(self) -> tuple[Floats, Booleans]:
        """Descending confidences (N,) and correct flags (N,)."""
        return np.array(self.confidences, np.float64), np.array([flag == "1" for flag in self.correct], np.bool_)

    @cached_property
    def digest(self) -> str:
        """Checksum of the values, independent of the file's formatting."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def diagram(self) -> dict[str, ReliabilityBins]:
        """Reliability bins before and after the map."""
        return {
            stage: ReliabilityBins(
                bin_edges(len(bins["counts"])),
                np.array(bins["counts"], np.int64),
                np.array(bins["accuracy"], np.float64),
                np.array(bins["confidence"], np.float64),
                self.labels,
            )
            for stage, bins in self.bins.items()
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame of :attr:`held_out`, one row per metric, with 95 % intervals."""
        import pandas as pd

        rows = [
            {
                "metric": metric.title,
                **{f"before{name}": value for name, value in zip(_COLUMNS, metric.before, strict=True)},
                **{f"after{name}": value for name, value in zip(_COLUMNS, metric.after, strict=True)},
            }
            for metric in self.held_out
        ]
        return pd.DataFrame(rows)

    def as_dict(self) -> dict[str, Json]:
        """Return plain data without the checksum."""
        return self.model_dump(mode="json", by_alias=True)

    @checked
    def write(self, path: str | Path) -> None:
        """Write the file atomically."""
        try:
            write_atomically(Path(path), as_json({**self.as_dict(), "checksum": self.digest}))
        except (OSError, ValueError) as error:  # ValueError: of a path that cannot exist
            raise OtptError(f"Cannot write the calibration to {str(path)!r}: {describe_error(error)}.") from None

    def check(self, facts: Mapping[str, object]) -> None:
        """Raise unless ``facts`` match the calibration; only names of model and method may differ."""
        expected, actual = self.class_names, _class_names(facts)
        if expected != actual:
            what = f"{len(expected)} classes, not for these {len(actual)}"
            if len(expected) == len(actual):
                pairs = zip(expected, actual, strict=True)
                ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
                order = "in another order" if set(expected) == set(actual) else "with other names"
                what = f"these {len(expected)} classes {order}: {ours!r}, not {theirs!r}"
            raise OtptError(
                f"The calibration is for {what}; use the same class list for both, such as --classes @FILE with 'otpt "
                "calibrate' and here."
            )
        stored, current = dict(_leaves(self.facts)), dict(_leaves(facts))
        differing = [key for key in {**stored, **current} if stored.get(key) != current.get(key)]
        if set(differing) - {"model.name", "method.name"}:
            shown = ", ".join(f"{key} {stored.get(key)!r} (not {current.get(key)!r})" for key in differing[:3])
            raise OtptError(
                f"The calibration is for {shown}; create one for these settings with 'otpt calibrate', or remove it."
            )


def _class_names(facts: Mapping[str, object]) -> tuple[str, ...]:
    classes = facts.get("classes")
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise OtptError(f"The classes of the facts are {classes!r:.80}; expected a list of class names.")
    return tuple(classes)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the plain values of nested data with their paths, such as ("method.numbers.steps", 1)."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, child in items:
        yield from _leaves(child, f"{path}.{key}".removeprefix("."))


@checked
def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file, or raise :class:`OtptError` if it is corrupt or of another version."""
    path = Path(path).expanduser()
    content = read_json(path, "calibration file")
    try:
        calibration = Calibration.model_validate(content)
        if not isinstance(content, Mapping) or calibration.digest != content.get("checksum"):
            raise ValueError("its checksum is wrong")
    except ValueError as error:
        reason = describe_mistake(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
        raise OtptError(
            f"The file {str(path)!r} is not a calibration file of this version or is corrupt: {reason}; recreate it "
            "with 'otpt calibrate'."
        ) from error
    return calibration


@checked
def fit_calibration(
    probabilities: Values,
    labels: Values,
    facts: Mapping[str, object],
    *,
    origin: Mapping[str, object] | None = None,
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
    valid, y = check_probabilities(probabilities, labels)
    classes, seen = _class_names(facts), np.unique(y)
    if len(classes) != valid.shape[1]:
        raise OtptError(f"expected probabilities of {len(classes)} classes, but got {valid.shape[1]}.")
    _check_labels(len(y), len(seen) > 1, f"All {len(y)} labels are of the class {classes[seen[0]]!r}")
    if not 0.0 <= penalty < np.inf or free_ranks < 0:
        raise OtptError(f"expected a RAPS penalty and ranks of 0 or more, but got {penalty!r} and {free_ranks!r}.")
    p = as_stored(valid)
    scores = {}  # of the true class
    for kind in SETS:
        scores[kind] = conformal_scores(kind, p, penalty=float(penalty), free_ranks=free_ranks)[np.arange(len(y)), y]
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    order = np.lexsort((~correct, -confidence))

    def metrics(values: Floats) -> StageMetrics:
        intervals = {name: bootstrap(name, values, y, n_bins=n_bins) for name in SHOWN}
        return {name: [interval.estimate, interval.low, interval.high] for name, interval in intervals.items()}

    def diagram(values: Floats) -> ReliabilityBins:
        return reliability_bins(values, y, n_bins=n_bins)

    choice = choose_map(p, y, maps=maps)
    reliability = _reliability(p, choice, metrics, diagram)
    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        map=choice.map,
        cross_validation=choice.nll,
        reliability=reliability.metrics,
        bins=reliability.bins,
        scores={kind: _by_class(scores[kind], y) for kind in SETS},
        raps={"penalty": float(penalty), "free_ranks": free_ranks},
        confidences=confidence[order].tolist(),
        correct="".join("1" if flag else "0" for flag in correct[order]),
    )


def _by_class(scores: Floats, labels: Integers) -> dict[int, list[float]]:
    """Return the scores (N,) of each class in rising order."""
    return {int(label): np.sort(scores[labels == label]).tolist() for label in np.unique(labels)}


@checked
def fit_label_calibration(
    probabilities: Values,
    present: Values,
    facts: Mapping[str, object],
    *,
    origin: Mapping[str, object] | None = None,
    n_bins: int = 15,
) -> Calibration:
    """Fit a calibration to probabilities (N, C) of independent labels, of which some are ``present`` (N, C).

    Platt scaling with one shared bias or one per label. Prediction sets and risk thresholds are not supported.
    """
    check_bins(n_bins)
    p, y = check_labels_present(probabilities, present)
    p = as_stored(p)
    _check_labels(len(y), bool(y.any() and not y.all()), "All labels are absent or all are present")

    def metrics(values: Floats) -> StageMetrics:
        intervals = multi_label_intervals(values, y, n_bins=n_bins)
        return {name: list(interval) for name, interval in intervals.items()}

    def diagram(values: Floats) -> ReliabilityBins:
        return reliability_bins(values.ravel(), y.ravel(), n_bins=n_bins)

    choice = choose_label_map(p, y)
    reliability = _reliability(p, choice, metrics, diagram)
    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        map=choice.map,
        cross_validation=choice.nll,
        reliability=reliability.metrics,
        bins=reliability.bins,
    )


def _check_labels(count: int, differ: bool, problem: str) -> None:
    if count < LEAST_LABELS:
        raise OtptError(f"Got {count} labelled images; expected at least {LEAST_LABELS}, better hundreds.")
    if not differ:
        raise OtptError(f"{problem}; expected images of several classes.")


class _Reliability(NamedTuple):
    """Metrics and reliability diagrams before and after the map."""

    metrics: dict[str, StageMetrics]
    bins: dict[str, StageBins]


def _reliability(
    before: Floats,
    choice: Choice,
    metrics: Callable[[Floats], StageMetrics],
    diagram: Callable[[Floats], ReliabilityBins],
) -> _Reliability:
    """Compute the reliability of held-out probabilities before and after the chosen map."""
    stages = {"before": before, "after": choice.held_out}
    return _Reliability(
        metrics={stage: metrics(values) for stage, values in stages.items()},
        bins={stage: _stage_bins(diagram(values)) for stage, values in stages.items()},
    )


def _stage_bins(bins: ReliabilityBins) -> StageBins:
    """Return the columns of a reliability diagram as plain data, with None for empty bins."""
    return {
        "counts": bins.counts.tolist(),
        "confidence": [None if np.isnan(value) else value for value in bins.confidence.tolist()],
        "accuracy": [None if np.isnan(value) else value for value in bins.accuracy.tolist()],
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
        if not isinstance(self.calibration, Calibration):
            raise OtptError(f"The calibration is {self.calibration!r:.80}; expected a Calibration, as calibrate gives.")
        for name in ("coverage", "risk", "guarantee"):
            if getattr(self, name) is not None:
                check_fraction(name, getattr(self, name), such_as="0.9")
        if not isinstance(self.mondrian, bool):
            raise OtptError(f"mondrian is {self.mondrian!r:.80}; expected True or False.")
        if not isinstance(self.sets, str) or self.sets not in SETS:
            raise unknown("kind of prediction sets", str(self.sets)[:80], SETS)
        if self.calibration.multi_label and (self.coverage is not None or self.risk is not None):
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
    def key(self) -> dict[str, Json]:
        """Plain data that determine the answers."""
        key: dict[str, Json] = {"digest": self.calibration.digest, "coverage": self.coverage}
        if self.coverage is not None:
            key |= {"sets": self.sets, "mondrian": self.mondrian}
        key["risk"] = self.risk
        if self.risk is not None:
            key["guarantee"] = self.guarantee
        return key

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
            by_class = [np.array(scores.get(c, ()), np.float64) for c in range(classes)]
            return np.array([conformal_quantile(of_class, self.coverage) for of_class in by_class])
        together = np.concatenate([np.array(of_class) for of_class in scores.values()])
        return np.full(classes, conformal_quantile(together, self.coverage))

    @property
    def always_in(self) -> int:
        """Number of classes in every Mondrian set because they have too few labels."""
        return 0 if self.coverage is None else int(np.isinf(self.quantiles).sum())

    def answer(self, probabilities: npt.ArrayLike, index: int | None = None) -> CalibratedAnswer:
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
            penalty = self.calibration.raps.get("penalty", PENALTY)
            free_ranks = self.calibration.raps.get("free_ranks", FREE_RANKS)
            scores = conformal_scores(self.sets, raw[None], penalty=penalty, free_ranks=free_ranks)[0]
            inside = {first, index, *np.flatnonzero(scores <= self.quantiles).tolist()}
            classes = tuple(sorted(inside, key=lambda c: (-calibrated[c], c)))
        abstained = None if self.threshold is None else not self.threshold.answers(float(raw.max()))
        return CalibratedAnswer(calibrated, index, classes, abstained)
