"""Registry of metrics with name, title, direction, unit, range, aliases and function.

A metric is one function of rows (see :mod:`otpt.metrics.inputs`) and weights (R, N), the number of times that each
image was drawn in each of R resamples; it returns (R,) values. Weights of one give the metric itself, so the bootstrap
needs no second implementation. The decorator :func:`metric` adds it to :data:`METRICS` and turns it into the public
function of (probabilities, labels) or (confidence, correct).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

import numpy as np

from otpt.arguments import checked
from otpt.errors import OtptError, unknown
from otpt.metrics.inputs import (
    AnyRows,
    ClassRows,
    ConfidenceRows,
    DenseRows,
    FloatArray,
    InputRows,
    StoredRows,
    Values,
    check_bins,
    check_classes,
    check_confidence,
    check_probabilities,
    to_numpy,
)

P = ParamSpec("P")
R = TypeVar("R")
Function: TypeAlias = Callable[Concatenate[Values, Values, P], float]
Best = Literal["higher", "lower", "zero"]
Needs = Literal["confidence", "classes", "rows", "probabilities"]

NLL_FLOOR = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, 1.18e-38; smaller values of a float32 softmax are not accurate."""


@dataclass(frozen=True)
class Metric:
    """Entry of the registry.

    Attributes:
        name: key in Python, JSON and data frames, such as "adaptive_ece".
        title: title in tables, without the unit; short: title in the layouts of papers.
        best: direction of better values; None for descriptive numbers.
        unit: "%" for fractions, which are printed times 100; "" and "nats" for values printed unchanged.
        range: lowest and highest possible value.
        aliases: other names, the Python function's first.
        needs: "confidence" (and correct), "classes" (predicted, and labels), "rows" as runs store them, or all
            "probabilities".
        compute: function of rows, weights (R, N) and options, which returns (R,).
        function: public function of (probabilities, labels) or (confidence, correct), and options.
        options: names of the options of both functions, such as n_bins.
    """

    name: str
    title: str
    short: str
    best: Best | None
    unit: str
    range: tuple[float, float]
    aliases: tuple[str, ...]
    needs: Needs
    compute: Callable[..., FloatArray]
    function: Callable[..., float]
    options: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Column heading: title with the percent sign if applicable."""
        return f"{self.title} %" if self.unit == "%" else self.title

    def cost(self, value: float) -> float:
        """Return a number that is lower for better values; a debiased ECE below 0 is no better than 0."""
        if self.best == "higher":
            return -value
        return abs(value) if self.best == "zero" else max(value, 0.0)

    def format(self, value: float | None, digits: int = 2) -> str:
        """Format a value as published tables do: fractions times 100, others with two more digits; "–" for None."""
        if value is None:
            return "–"
        return percent(value, digits) if self.unit == "%" else f"{value:.{digits + 2}f}"

    def resampled(self, rows: AnyRows, weights: FloatArray, **options: object) -> FloatArray:
        """Compute the metric of each of R resamples; options that do not apply are ignored."""
        return self.compute(rows, weights, **{name: options[name] for name in self.options if name in options})

    def value(self, rows: AnyRows, **options: object) -> float:
        """Compute the metric of rows; nan where it is not defined."""
        return float(self.resampled(rows, np.ones((1, len(rows.correct))), **options)[0])


METRICS: dict[str, Metric] = {}
"""All metrics by name."""


@checked
def percent(fraction: float, digits: int = 2) -> str:
    """Format a fraction as a percentage without its sign."""
    if digits < 0:
        raise OtptError(f"digits is {digits}; expected 0 or more.")
    text = f"{100.0 * fraction:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text  # no "-0.00"


@checked
def get_metric(name: str) -> Metric:
    """Return the metric with this name or alias, in any case, with hyphens or underscores.

    >>> get_metric("classwise-ECE").name
    'sce'
    """
    wanted = name.lower().replace("-", "_")
    for metric in METRICS.values():
        if wanted == metric.name or wanted in metric.aliases:
            return metric
    raise unknown("metric", name, METRICS)


@overload
def rows_of(
    first: Values, second: Values, needs: Literal["confidence"] = "confidence", name: str = ...
) -> DenseRows | ConfidenceRows: ...


@overload
def rows_of(first: Values, second: Values, needs: Literal["classes"], name: str = ...) -> DenseRows | ClassRows: ...


@overload
def rows_of(first: Values, second: Values, needs: Literal["rows", "probabilities"], name: str = ...) -> DenseRows: ...


@overload
def rows_of(first: Values, second: Values, needs: Needs, name: str = ...) -> InputRows: ...


def rows_of(first: Values, second: Values, needs: Needs = "confidence", name: str = "This metric") -> InputRows:
    """Validate (probabilities, labels), or, where sufficient, (confidence, correct) or (classes, labels)."""
    if to_numpy(first, "probabilities").ndim != 1:
        return DenseRows(*check_probabilities(first, second))
    if needs == "confidence":
        return check_confidence(first, second)
    if needs == "classes":
        return check_classes(first, second)
    raise OtptError(
        f"{name} needs probabilities of shape (N, C) and labels; confidence and correct suffice for: "
        f"{', '.join(metric.name for metric in METRICS.values() if metric.needs == 'confidence')}."
    )


def metric(
    name: str,
    title: str,
    *aliases: str,
    short: str = "",
    best: Best | None = "lower",
    unit: str = "%",
    range: tuple[float, float] = (0.0, 1.0),
    needs: Needs = "confidence",
) -> Callable[[Callable[Concatenate[R, FloatArray, P], FloatArray]], Function[P]]:
    """Register a function of rows and weights and turn it into a function of (probabilities, labels)."""

    def register(compute: Callable[Concatenate[R, FloatArray, P], FloatArray]) -> Function[P]:
        options = list(inspect.signature(compute).parameters.values())[2:]

        inputs = ("confidence", "correct") if needs == "confidence" else ("probabilities", "labels")
        names = dict(zip(inputs, ("probabilities", "labels"), strict=True))
        validated = checked(compute)

        def value(probabilities: Values, labels: Values, *args: P.args, **kwargs: P.kwargs) -> float:
            rows = rows_of(probabilities, labels, needs, compute.__name__)
            weights = np.ones((1, len(rows.correct)))
            return float(validated(cast(R, rows), weights, *args, **kwargs)[0])  # the rows that the metric needs

        def function(*args: Values, **kwargs: Values) -> float:
            by_name: dict[str, Values] = {names.get(name, name): argument for name, argument in kwargs.items()}
            return value(*args, **by_name)  # type: ignore[arg-type]

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [*(inspect.Parameter(input, kind, annotation=Values) for input in inputs), *options]
        function.__name__ = function.__qualname__ = compute.__name__
        function.__doc__, function.__module__ = compute.__doc__, compute.__module__
        vars(function)["__signature__"] = inspect.Signature(parameters, return_annotation=float)
        METRICS[name] = Metric(
            name=name,
            title=title,
            short=short or title,
            best=best,
            unit=unit,
            range=range,
            aliases=tuple(dict.fromkeys((compute.__name__, *aliases))),
            needs=needs,
            compute=compute,
            function=function,
            options=tuple(option.name for option in options),
        )
        return function  # type: ignore[return-value]  # the two arguments may also be named

    return register


@dataclass(frozen=True)
class Metrics:
    """All metrics of N predictions over C classes, as fractions; see :data:`METRICS` for ranges."""

    images: int
    classes: int
    accuracy: float
    top5_accuracy: float
    macro_f1: float
    ece: float
    debiased_ece: float
    smooth_ece: float
    adaptive_ece: float
    ks_error: float
    mce: float
    sce: float
    brier: float
    top_label_brier: float
    nll: float
    confidence: float
    overconfidence: float
    entropy: float
    aurc: float
    excess_aurc: float
    auroc: float | None  # None if all predictions are correct, or all wrong
    fpr95: float | None
    selective_accuracy: float
    coverage_at_risk: float
    n_bins: int
    side: str

    def as_dict(self) -> dict[str, int | float | str | None]:
        """Return plain numbers by name."""
        return asdict(self)

    def as_percent(self, digits: int = 2) -> dict[str, str]:
        """Format the metrics as published tables do; see :meth:`otpt.metrics.Metric.format`."""
        values: dict[str, float | None] = asdict(self)
        return {name: METRICS[name].format(values[name], digits) for name in values if name in METRICS}


@checked
def evaluate(
    probabilities: Values, labels: Values, *, n_bins: int = 20, side: str = "right", floor: float = NLL_FLOOR
) -> Metrics:
    """Compute every metric of probabilities (N, C) and labels (N,); ``floor`` applies to the NLL.

    >>> evaluate([[0.9, 0.1], [0.8, 0.2]], [0, 1]).as_percent()["ece"]
    '45.00'
    """
    return evaluate_rows(DenseRows(*check_probabilities(probabilities, labels)), n_bins=n_bins, side=side, floor=floor)


def evaluate_rows(
    rows: DenseRows | StoredRows, *, n_bins: int = 20, side: str = "right", floor: float = NLL_FLOOR
) -> Metrics:
    """Compute every metric of :class:`~otpt.metrics.inputs.Rows`, such as the rows of a run."""
    check_bins(n_bins, side)
    values: dict[str, float] = {}
    for name, metric in METRICS.items():
        if metric.needs != "probabilities":
            values[name] = metric.value(rows, n_bins=n_bins, side=side, floor=floor)
    classes = rows.p.shape[1] if isinstance(rows, DenseRows) else len(rows.class_sums)
    auroc = values.pop("auroc")
    fpr = values.pop("fpr95")
    return Metrics(
        images=len(rows.labels),
        classes=classes,
        **values,
        auroc=None if np.isnan(auroc) else auroc,
        fpr95=None if np.isnan(fpr) else fpr,
        n_bins=int(n_bins),
        side=side,
    )
