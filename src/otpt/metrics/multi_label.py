"""Metrics of several labels per image, from independent probabilities (N, C) and present labels (N, C).

Easy negatives, absent labels with a probability below 1 %, dominate the ECE over all pairs of image and label;
``easy_negatives=False`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.metrics.inputs import BoolArray, FloatArray, Values, to_numpy

EASY = 0.01
"""Probability below which an absent label is an easy negative."""


def check_labels_present(probabilities: Values, present: Values) -> tuple[FloatArray, BoolArray]:
    """Validate probabilities (N, C) of independent labels, and which of them are present."""
    p_any, y_any = to_numpy(probabilities, "probabilities"), to_numpy(present, "labels")
    for name, array in {"probabilities": p_any, "labels": y_any}.items():
        if array.dtype.kind not in "fiub":
            raise OtptError(f"expected {name} as numbers (N, C), but got {array.dtype}.")
    p, y = p_any.astype(np.float64), y_any.astype(np.bool_)
    if p.ndim != 2 or p.shape != y.shape or p.size == 0:
        raise OtptError(f"Probabilities have shape {p.shape} and labels {y.shape}; expected (N, C) for both.")
    if not np.isfinite(p).all() or p.min() < 0 or p.max() > 1:
        raise OtptError(f"Probabilities range from {p.min():g} to {p.max():g}; expected numbers between 0 and 1.")
    return p, y


@checked
def mean_average_precision(probabilities: Values, present: Values) -> float:
    """Compute the average precision, averaged over the labels that occur; nan if none does.

    >>> mean_average_precision([[0.9, 0.2], [0.4, 0.6]], [[1, 0], [0, 1]])
    1.0
    """
    p, y = check_labels_present(probabilities, present)
    of_labels = [_average_precision(p[:, c], y[:, c]) for c in range(y.shape[1]) if y[:, c].any()]
    return float(np.mean(of_labels)) if of_labels else float("nan")


def _average_precision(p: FloatArray, y: BoolArray) -> float:
    """Compute Σ_k (R_k − R_{k−1})·P_k over the distinct scores in descending order."""
    order = np.argsort(-p, kind="stable")
    last = np.append(np.diff(p[order]) != 0, True)  # images with equal scores count together
    right, chosen = np.cumsum(y[order])[last], np.flatnonzero(last) + 1
    return float((np.diff(right, prepend=0) / y.sum() * right / chosen).sum())


@checked
def multi_label_f1(probabilities: Values, present: Values, *, threshold: float = 0.5, average: str = "micro") -> float:
    """Compute F1 at a threshold, over all pairs ("micro") or as the mean over labels ("macro").

    >>> multi_label_f1([[0.9, 0.6], [0.4, 0.6]], [[1, 0], [0, 1]])
    0.8
    """
    p, y = check_labels_present(probabilities, present)
    if average not in ("micro", "macro"):
        raise OtptError(f"average is {average!r}; expected 'micro' or 'macro'.")
    axis = None if average == "micro" else 0
    chosen = p >= threshold
    right = np.asarray((chosen & y).sum(axis=axis), np.float64)
    both = np.asarray(chosen.sum(axis=axis) + y.sum(axis=axis), np.float64)
    defined = both > 0
    return float(np.mean(2 * right[defined] / both[defined])) if defined.any() else float("nan")


@checked
def multi_label_ece(probabilities: Values, present: Values, *, n_bins: int = 15, easy_negatives: bool = True) -> float:
    """Compute the expected calibration error over pairs of image and label, with equal-width bins.

    Σ_b |Σ_{i∈b} (p_i − y_i)| / n over the pairs i. For ``easy_negatives`` see the module.

    >>> multi_label_ece([[0.5, 0.5]], [[1, 0]])
    0.0
    """
    pairs = check_labels_present(probabilities, present)
    p, y = pairs[0].ravel(), pairs[1].ravel()
    if not easy_negatives:
        kept = y | (p >= EASY)
        p, y = p[kept], y[kept]
    if p.size == 0:
        return float("nan")
    bins = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
    return float(np.abs(np.bincount(bins, weights=p - y, minlength=n_bins)).sum() / p.size)


@checked
def classwise_label_ece(
    probabilities: Values, present: Values, *, n_bins: int = 15, easy_negatives: bool = True
) -> float:
    """Compute the calibration error of each label, averaged over the labels with a pair."""
    p, y = check_labels_present(probabilities, present)
    columns = [(p[:, c : c + 1], y[:, c : c + 1]) for c in range(p.shape[1])]
    errors = [multi_label_ece(*column, n_bins=n_bins, easy_negatives=easy_negatives) for column in columns]
    return float(np.nanmean(errors)) if np.isfinite(errors).any() else float("nan")


@checked
def multi_label_nll(probabilities: Values, present: Values) -> float:
    """Compute the mean of −y log p − (1 − y) log(1 − p) over all pairs, p clipped to [1e-12, 1 − 1e-12]."""
    p, y = check_labels_present(probabilities, present)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.where(y, np.log(p), np.log1p(-p)).mean())


METRICS: Mapping[str, tuple[str, Callable[..., float]]] = {
    "map": ("mAP %", lambda p, y, n_bins: mean_average_precision(p, y)),
    "micro_f1": ("micro F1 %", lambda p, y, n_bins: multi_label_f1(p, y)),
    "macro_f1": ("macro F1 %", lambda p, y, n_bins: multi_label_f1(p, y, average="macro")),
    "label_ece": ("ECE %", multi_label_ece),
    "hard_label_ece": ("ECE without easy negatives %", partial(multi_label_ece, easy_negatives=False)),
    "classwise_label_ece": ("ECE per label %", classwise_label_ece),
    "hard_classwise_label_ece": (
        "ECE per label without easy negatives %",
        partial(classwise_label_ece, easy_negatives=False),
    ),
    "label_nll": ("NLL", lambda p, y, n_bins: multi_label_nll(p, y)),
}
"""Title, and function of probabilities, labels and the keyword n_bins."""
OF_ONE_LABEL = {"map": "AP %", "micro_f1": "F1 %", "label_ece": "ECE %", "label_nll": "NLL"}
"""Metrics that are defined for a single label, with their titles."""


def multi_label_intervals(
    probabilities: Values, present: Values, *, n_bins: int = 15, resamples: int = 200, metrics: Iterable[str] = METRICS
) -> dict[str, tuple[float, float, float]]:
    """Return metrics with 95 % intervals over images, {name: (value, low, high)}, fractions in percent."""
    p, y = check_labels_present(probabilities, present)
    draws = np.random.default_rng(0).integers(0, len(p), (resamples, len(p)))
    intervals = {}
    for name in metrics:
        title, metric = METRICS[name]
        scale = 100.0 if title.endswith("%") else 1.0
        values = [metric(p[draw], y[draw], n_bins=n_bins) for draw in draws]
        low, high = np.nanpercentile(values, [2.5, 97.5]) if np.isfinite(values).any() else (np.nan, np.nan)
        intervals[name] = scale * metric(p, y, n_bins=n_bins), scale * float(low), scale * float(high)
    return intervals


def multi_label_table(
    probabilities: Values, present: Values, labels: Sequence[str], *, n_bins: int = 15
) -> pd.DataFrame:
    """Return the metrics over all labels and of each label, with 95 % intervals over images.

    The columns are label ("" for all), images (with this label, or any), metric, value, low and high.
    """
    p, y = check_labels_present(probabilities, present)
    rows: list[tuple[str, int, str, float, float, float]] = []
    for column, label in enumerate(("", *labels), start=-1):
        part = slice(None) if column < 0 else slice(column, column + 1)
        metrics = METRICS if column < 0 else OF_ONE_LABEL
        intervals = multi_label_intervals(p[:, part], y[:, part], n_bins=n_bins, metrics=metrics)
        images = int(y[:, part].any(axis=1).sum())
        rows += [(label, images, metric, *values) for metric, values in intervals.items()]
    return pd.DataFrame(rows, columns=["label", "images", "metric", "value", "low", "high"])
