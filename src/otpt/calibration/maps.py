"""Maps of probabilities fitted on labelled images, and the choice among them by cross-validation.

| map | form | parameters |
|---|---|---|
| identity | p | |
| temperature | softmax(log p/T) | T |
| beta | confidence with log-odds a·ln s − b·ln(1 − s) + c, a, b ≥ 0 (Kull et al., AISTATS 2017) | a, b, c |
| isotonic | confidence by a rising step function, interpolated | its corners x, y |
| bias, vector | softmax(w∘log p + c), a bias and, for "vector", a slope per class | slopes, biases |
| platt, platt-per-label | σ(a·logit p + b) of independent labels, with one b or one for each label | slope, biases |

Beta and isotonic map the confidence s alone. The other classes follow from softmax(log p/τ), with τ such that its
largest entry is the wanted confidence: it preserves the order of all classes and so the label, and reaches every
confidence above 1/C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize
from scipy.special import expit, log_expit, softmax
from torch import Tensor

from otpt.calibration.arrays import NUMPY, TORCH, Array, Booleans, Floats, Functions, Integers
from otpt.calibration.logits import fit_temperature
from otpt.errors import OtptError, unknown
from otpt.metrics import negative_log_likelihood
from otpt.metrics.multi_label import multi_label_nll
from otpt.threads import one_thread

Labels: TypeAlias = Integers | Booleans
"""Class indices (N,), or whether each of C labels is present (N, C)."""
Parameters: TypeAlias = Mapping[str, float | list[float]]
"""Fitted numbers of a map by name."""

LEAST_LABELS = 20
"""Smallest number of labels for any calibration."""
FOLDS = 5

PRIOR = 5.0
"""Weight of the Gamma prior of :func:`otpt.calibration.fit_temperature`, in labels."""
_TEMPERATURES = (0.05, 20.0)
_BIAS, _SLOPE = 1.0, 25.0  # 1/variance of the normal priors of "bias" and "vector"
_TINY = float(np.finfo(np.float32).tiny)
_LEAST_LABEL = 1e-7  # probabilities of independent labels are clipped to this distance from 0 and 1
_LEAST = 1.02  # smallest target confidence, in units of 1/C, where all classes are equal
_BISECTIONS = 60


def as_stored(probabilities: npt.ArrayLike) -> Floats:
    """Round probabilities (…, C) to float32, as stored in runs."""
    return np.asarray(probabilities, np.float32).astype(np.float64)


def _logs(xp: Functions[Array], probabilities: Array) -> Array:
    """Compute log p (N, C), clipped at the smallest normal float32."""
    return xp.log(xp.clip(probabilities, _TINY))


def with_confidence(xp: Functions[Array], probabilities: Array, wanted: Array) -> Array:
    """Compute softmax(log p/τ) (N, C) with the largest entry ``wanted`` (N,).

    If tied classes make it unreachable, the nearest confidence with τ in [10⁻³, 10³] is used.
    """
    logs = _logs(xp, probabilities)
    gaps = logs - xp.largest(logs)
    target = xp.clip(wanted, _LEAST / probabilities.shape[1])
    low = xp.full_like(target, math.log(1e-3))
    high = xp.full_like(target, math.log(1e3))
    for _ in range(_BISECTIONS):  # bisection: the confidence 1/Σ exp(b·gap) rises with b = 1/τ
        middle = (low + high) / 2
        reached = 1.0 / xp.exp(xp.exp(middle)[:, None] * gaps).sum(1)
        low, high = (
            xp.where_less(reached, target, middle, low),
            xp.where_less(reached, target, high, middle),
        )
    return xp.softmax(xp.exp((low + high) / 2)[:, None] * gaps)


def _identity(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    return probabilities / probabilities.sum(1)[:, None]


def _fit_temperature(probabilities: Floats, labels: Integers) -> Parameters:
    with one_thread():
        logits, y = torch.from_numpy(_logs(NUMPY, probabilities)), torch.from_numpy(labels)
        return {"temperature": fit_temperature(logits, y, bounds=_TEMPERATURES, prior=PRIOR)}


def _apply_temperature(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    return xp.softmax(_logs(xp, probabilities) / xp.array(parameters["temperature"]))


def _beta_features(xp: Functions[Array], probabilities: Array) -> Array:
    """Return the features (ln s, −ln(1 − s), 1) of the confidence s: (N, 3).

    1 − s is the sum of the other probabilities, which is accurate even if s rounds to 1.
    """
    largest = xp.largest(probabilities)[:, 0]
    rest = xp.without_largest(probabilities).sum(1)
    return xp.columns([xp.log(largest), -xp.log(xp.clip(rest, 1e-12)), xp.full_like(largest, 1.0)])


def _fit_beta(probabilities: Floats, labels: Integers) -> Parameters:
    """Fit (a, b, c) by maximum likelihood, with a normal prior of variance 1 around the identity."""
    features, identity = _beta_features(NUMPY, probabilities), np.array([1.0, 1.0, 0.0])
    signs = np.where(probabilities.argmax(axis=1) == labels, 1.0, -1.0)

    def loss(point: Floats) -> tuple[float, Floats]:
        odds = signs * (features * point).sum(axis=1)
        gradient = -(signs * expit(-odds) * features.T).sum(axis=1) + point - identity
        return float(-log_expit(odds).sum() + np.square(point - identity).sum() / 2), gradient

    bounds = [(0, None), (0, None), (None, None)]
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 1000}
    best = optimize.minimize(loss, identity, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return dict(zip("abc", best.tolist(), strict=True))


def _apply_beta(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    coefficients = xp.array([parameters[name] for name in "abc"])
    # no matrix product, since its rounding may depend on the number of rows
    odds = (_beta_features(xp, probabilities) * coefficients).sum(1)
    return with_confidence(xp, probabilities, xp.sigmoid(odds))


def _fit_isotonic(probabilities: Floats, labels: Integers) -> Parameters:
    """Fit the corners of the non-decreasing g that minimises Σ_n (g(s_n) − [correct_n])².

    Values stay within [1/(N + 2), (N + 1)/(N + 2)], since N labels cannot show that a confidence of 0 or 1 is right.
    """
    places, inverse, counts = np.unique(probabilities.max(axis=1), return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=probabilities.argmax(axis=1) == labels) / counts
    steps = optimize.isotonic_regression(means, weights=counts)
    ends = np.unique([steps.blocks[:-1], steps.blocks[1:] - 1])  # first and last place of each step
    n = len(labels)
    return {
        "x": places[ends].tolist(),
        "y": np.clip(steps.x[ends], 1.0 / (n + 2), (n + 1.0) / (n + 2)).tolist(),
    }


def _apply_isotonic(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    x, y = xp.array(parameters["x"]), xp.array(parameters["y"])
    return with_confidence(xp, probabilities, xp.interpolate(xp.largest(probabilities)[:, 0], x, y))


def _fit_linear(probabilities: Floats, labels: Integers, *, slopes: bool) -> Parameters:
    """Fit slopes w_k = b + d_k and biases c_k by the convex objective

        Σ_n −log softmax(w∘log p_n + c)[y_n]  +  5·(b − log b)  +  ½ Σ_k c_k²  +  12.5 Σ_k d_k²

    with a Gamma prior of five labels on b, and normal priors on the biases (standard deviation 1) and on the
    differences of the slopes (0.2); d = 0 without ``slopes``.
    """
    logs = _logs(NUMPY, probabilities)
    classes, rows = logs.shape[1], np.arange(len(labels))
    precision = np.repeat([_SLOPE, _BIAS], classes)

    def loss(point: Floats) -> tuple[float, Floats]:
        shared, differences, biases = point[0], point[1 : 1 + classes], point[1 + classes :]
        scores = (shared + differences) * logs + biases
        p = np.asarray(softmax(scores, axis=1))
        nll = -np.log(np.maximum(p[rows, labels], _TINY)).sum()
        prior = PRIOR * (shared - np.log(shared)) + (precision * np.square(point[1:])).sum() / 2
        p[rows, labels] -= 1.0
        by_class = (p * logs).sum(axis=0)
        gradient = np.concatenate([[by_class.sum()], by_class * slopes, p.sum(axis=0)])
        return float(nll + prior), gradient + np.concatenate([[PRIOR * (1 - 1 / shared)], precision * point[1:]])

    start = np.concatenate([[1.0], np.zeros(2 * classes)])
    bounds = [(1e-3, None), *[(None, None)] * (2 * classes)]
    options = {"ftol": 0.0, "gtol": 1e-9, "maxiter": 10_000, "maxcor": 50}
    best = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return {"slopes": (best[0] + best[1 : 1 + classes]).tolist(), "biases": best[1 + classes :].tolist()}


def _apply_linear(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    slopes, biases = xp.array(parameters["slopes"]), xp.array(parameters["biases"])
    return xp.softmax(slopes * _logs(xp, probabilities) + biases)


def _log_odds(xp: Functions[Array], probabilities: Array) -> Array:
    p = xp.clip(probabilities, _LEAST_LABEL, 1 - _LEAST_LABEL)
    return xp.log(p) - xp.log1p(-p)


def _fit_platt(probabilities: Floats, present: Booleans, *, per_label: bool) -> Parameters:
    """Fit (a, b) by the likelihood of the ``present`` labels (N, C).

    Normal priors of standard deviation 1 keep the slope near 1 and, with ``per_label``, the biases near each other.
    """
    odds, signs = _log_odds(NUMPY, probabilities), np.where(present, 1.0, -1.0)
    labels = odds.shape[1] if per_label else 0

    def loss(point: Floats) -> tuple[float, Floats]:
        slope, bias = point[0], point[1]
        offsets = point[2:] if per_label else 0.0
        margins = signs * (slope * odds + bias + offsets)
        pull = -signs * expit(-margins)
        of_offsets = pull.sum(axis=0)[:labels] + offsets
        gradient = np.concatenate([[(pull * odds).sum() + slope - 1, pull.sum()], of_offsets])
        prior = (slope - 1) ** 2 + float(np.square(offsets).sum())
        return float(-log_expit(margins).sum() + prior / 2), gradient

    point = optimize.minimize(loss, np.array([1.0, 0.0, *[0.0] * labels]), jac=True, method="L-BFGS-B").x
    return {"slope": float(point[0]), "biases": (point[1] + point[2:] if per_label else point[1:2]).tolist()}


def _apply_platt(xp: Functions[Array], probabilities: Array, parameters: Parameters) -> Array:
    slope, biases = xp.array(parameters["slope"]), xp.array(parameters["biases"])
    return xp.sigmoid(slope * _log_odds(xp, probabilities) + biases)


class Apply(Protocol):
    """Formula of a map of probabilities (N, C), for numpy arrays and tensors; see :mod:`otpt.calibration.arrays`."""

    def __call__(self, xp: Functions[Array], probabilities: Array, parameters: Parameters, /) -> Array: ...


class Kind(NamedTuple):
    """Kind of map: ``fit`` returns parameters, ``apply`` maps probabilities (N, C) with them.

    It requires ``labels`` labels, plus ``per_class`` for each class. ``keeps_label``: the argmax does not change.
    """

    labels: int
    fit: Callable[..., Parameters]
    apply: Apply
    per_class: int = 0
    keeps_label: bool = True

    def needs(self, classes: int) -> int:
        """Return the smallest number of labels for ``classes`` classes."""
        return max(self.labels, self.per_class * classes)


MAPS: Mapping[str, Kind] = {
    "identity": Kind(LEAST_LABELS, lambda p, y: {}, _identity),
    "temperature": Kind(LEAST_LABELS, _fit_temperature, _apply_temperature),
    "beta": Kind(100, _fit_beta, _apply_beta),
    "isotonic": Kind(500, _fit_isotonic, _apply_isotonic),
    "bias": Kind(100, partial(_fit_linear, slopes=False), _apply_linear, per_class=5, keeps_label=False),
    "vector": Kind(200, partial(_fit_linear, slopes=True), _apply_linear, per_class=20, keeps_label=False),
}
"""Maps of class probabilities, simplest first; ties are resolved in this order."""

OF_LABELS: Mapping[str, Kind] = {
    "platt": Kind(LEAST_LABELS, partial(_fit_platt, per_label=False), _apply_platt, keeps_label=False),
    "platt-per-label": Kind(LEAST_LABELS, partial(_fit_platt, per_label=True), _apply_platt, keeps_label=False),
}
"""Maps of the probabilities of independent labels."""
_ALL = {**MAPS, **OF_LABELS}

DEFAULT = tuple(name for name, kind in MAPS.items() if kind.keeps_label)
"""Default candidates, which preserve the predicted class."""


@dataclass(frozen=True)
class CalibrationMap:
    """Fitted map of probabilities.

    >>> CalibrationMap("temperature", {"temperature": 2.0})(np.array([0.8, 0.2])).round(4)
    array([0.6667, 0.3333])
    """

    kind: str
    parameters: Parameters = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _ALL:
            raise unknown("map", self.kind, _ALL)

    def __call__(self, probabilities: npt.ArrayLike) -> Floats:
        """Calibrate probabilities (…, C), rounded to float32."""
        rows = as_stored(probabilities)
        calibrated = _ALL[self.kind].apply(NUMPY, rows.reshape(-1, rows.shape[-1]), self.parameters)
        return calibrated.reshape(rows.shape)

    def of_tensor(self, probabilities: Tensor) -> Tensor:
        """Calibrate a tensor of probabilities (N, C) by the same formula, such as in the graph of an ONNX file."""
        return _ALL[self.kind].apply(TORCH, probabilities.float().double(), self.parameters)

    @property
    def keeps_label(self) -> bool:
        """Whether the most probable class stays the same."""
        return _ALL[self.kind].keeps_label

    @property
    def multi_label(self) -> bool:
        """Whether the map is one of the probabilities of independent labels; see :data:`OF_LABELS`."""
        return self.kind in OF_LABELS

    @property
    def words(self) -> str:
        """Short description of the map with its parameters."""
        numbers = [f"{name} {value:.4g}" for name, value in self.parameters.items() if isinstance(value, float)]
        return f"{self.kind} ({', '.join(numbers)})" if numbers else self.kind


class Choice(NamedTuple):
    """Map fitted on all labels, cross-validated NLL of each candidate, and held-out probabilities (N, C).

    The probabilities are those of the chosen kind of map, fitted without the image's fold.
    """

    map: CalibrationMap
    nll: dict[str, float]
    held_out: Floats


def fit_map(kind: str, probabilities: Floats, labels: Labels) -> CalibrationMap:
    """Fit a map of one kind."""
    return CalibrationMap(kind, _ALL[kind].fit(as_stored(probabilities), labels))


def choose_map(probabilities: Floats, labels: Integers, *, maps: Sequence[str] | None = None) -> Choice:
    """Choose the map of probabilities (N, C) and labels (N,) with the lowest cross-validated NLL.

    ``maps`` are the candidates besides the identity; by default all :data:`MAPS` that preserve the label and need no
    more labels.
    """
    n, classes = probabilities.shape
    for name in () if maps is None else maps:
        if name not in MAPS:
            raise unknown("map", name, MAPS)
        if MAPS[name].needs(classes) > n:
            raise OtptError(
                f"The map {name!r} needs {MAPS[name].needs(classes)} labels for {classes} classes, but got {n}; "
                "label more images, or use a simpler map."
            )
    wanted = {"identity", *(DEFAULT if maps is None else maps)}
    names = [name for name, kind in MAPS.items() if name in wanted and kind.needs(classes) <= n]
    return _best(names, probabilities, labels, stratified_folds(labels), negative_log_likelihood)


def choose_label_map(probabilities: Floats, present: Booleans) -> Choice:
    """Choose the map of independent labels (N, C), of which some are ``present`` (N, C); see :data:`OF_LABELS`."""
    fold = stratified_folds(np.zeros(len(present), np.int64))
    return _best(list(OF_LABELS), probabilities, present, fold, multi_label_nll)


def _best(
    names: Sequence[str],
    probabilities: Floats,
    labels: Labels,
    fold: Integers,
    score: Callable[[Floats, Labels], float],
) -> Choice:
    """Return the first map with the lowest score of held-out probabilities."""
    held_out = {name: np.empty(probabilities.shape) for name in names}
    for number in range(FOLDS):
        inside = fold != number
        for name in names:
            fitted = fit_map(name, probabilities[inside], labels[inside])
            held_out[name][~inside] = fitted(probabilities[~inside])
    nll = {name: score(calibrated, labels) for name, calibrated in held_out.items()}
    best = min(names, key=nll.__getitem__)
    return Choice(fit_map(best, probabilities, labels), nll, held_out[best])


def stratified_folds(labels: Integers, folds: int = FOLDS) -> Integers:
    """Assign a fold 0 … ``folds`` − 1 to each of (N,) labels, with each class spread evenly; deterministic."""
    order = np.random.default_rng(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_class] = np.arange(len(labels)) % folds
    return fold
