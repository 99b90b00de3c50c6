"""Checks of the input: probabilities (N, C) and labels (N,), or confidence (N,) and correct (N,)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError

if TYPE_CHECKING:
    from torch import Tensor

    Values: TypeAlias = npt.NDArray[Any] | Tensor | Sequence[Any]

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Statistic: TypeAlias = Callable[[FloatArray], FloatArray]
"""A metric as a function of weights: how often each image was drawn, (R, N) → (R,)."""

# A row of C probabilities rounded to float16 sums to one within 2^-11 + C·2^-25, rounded to bfloat16 within
# about 2^-9: five thousandths admit both, and still refuse logits, percentages and rows that lack a class.
SUM_TOLERANCE = 5e-3

_NO_LOGITS = "pass softmax probabilities, neither logits (RunningMetric takes them, with logits=True) nor percentages."

_CHUNK_ENTRIES = 1 << 20  # 8 MiB of float64 at a time, for any N and C


def to_numpy(values: Values, name: str) -> npt.NDArray[Any]:
    """The values of an array, tensor (any device and dtype) or sequence in numpy; float16 becomes float32."""
    # a tensor is known by its method: importing torch would be all this room needs torch for
    detach = getattr(values, "detach", None)
    if detach is not None:
        tensor = detach().cpu()
        if tensor.is_floating_point() and tensor.dtype.itemsize < 4:
            tensor = tensor.float()  # numpy has no bfloat16
        values = tensor.numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise OtptError(f"expected {name} as one rectangular array, but got rows of unequal length.") from error
    return array.astype(np.float32) if array.dtype == np.float16 else array


def row_chunks(probabilities: npt.NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """Consecutive rows in float64, few enough at a time that memory does not grow with N·C."""
    n, classes = probabilities.shape
    rows = max(1, _CHUNK_ENTRIES // classes)
    for start in range(0, n, rows):
        part = slice(start, min(n, start + rows))
        yield part, probabilities[part].astype(np.float64)


def check_probabilities(probabilities: Values, labels: Values) -> tuple[npt.NDArray[Any], IntArray]:
    """Checked (N, C) probabilities, float32 or float64, and checked (N,) int64 labels."""
    p = to_numpy(probabilities, "probabilities")
    if p.ndim != 2:
        raise OtptError(f"expected probabilities of shape (N, C), but got shape {p.shape}.")
    if p.size == 0:
        raise OtptError(f"expected at least one image and one class, but got shape {p.shape}.")
    if p.dtype.kind != "f":
        raise OtptError(f"expected probabilities as floating-point numbers, but got {p.dtype}.")
    y = to_numpy(labels, "labels")
    if y.shape != p.shape[:1]:
        raise OtptError(f"expected labels of shape ({len(p)},), one per image, but got shape {y.shape}.")
    if y.dtype.kind not in "iu":
        raise OtptError(f"expected labels as integers, but got {y.dtype}.")
    outside = (y < 0) | (y >= p.shape[1])
    if outside.any():
        at = int(np.argmax(outside))
        raise OtptError(f"expected labels from 0 to {p.shape[1] - 1}, but got {int(y[at])} at position {at}.")
    for part, rows in row_chunks(p):
        _check_rows(rows, part.start)
    return p, y.astype(np.int64)


def _check_rows(rows: FloatArray, start: int) -> None:
    """Refuse rows that are no distribution, naming the first one."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        at = start + int(np.argmin(finite))
        raise OtptError(f"expected finite probabilities, but got nan or infinity in row {at}.")
    lowest = rows.min(axis=1)
    if (lowest < 0).any():
        at = int(np.argmin(lowest))
        raise OtptError(f"expected probabilities >= 0, but got {lowest[at]:.6g} in row {start + at}; {_NO_LOGITS}")
    sums = rows.sum(axis=1)
    wrong = np.abs(sums - 1.0) > SUM_TOLERANCE
    if wrong.any():
        at = int(np.argmax(wrong))
        raise OtptError(f"expected rows that sum to one, but got {sums[at]:.6g} in row {start + at}; {_NO_LOGITS}")


def check_confidence(confidence: Values, correct: Values) -> tuple[FloatArray, BoolArray]:
    """Checked (N,) float64 confidences in [0, 1] and (N,) flags whether the prediction was correct."""
    c = to_numpy(confidence, "confidence")
    if c.ndim != 1:
        raise OtptError(f"expected confidence of shape (N,), but got shape {c.shape}.")
    if c.size == 0:
        raise OtptError("expected at least one image, but got none.")
    if c.dtype.kind not in "fiu":
        raise OtptError(f"expected confidence as floating-point numbers, but got {c.dtype}.")
    inside = (c >= 0) & (c <= 1)  # false for nan
    if not inside.all():
        at = int(np.argmin(inside))
        raise OtptError(f"expected confidence between 0 and 1, but got {float(c[at]):.6g} at position {at}.")
    right = to_numpy(correct, "correct")
    if right.shape != c.shape:
        raise OtptError(f"expected correct of shape {c.shape}, one flag per image, but got shape {right.shape}.")
    if right.dtype.kind not in "biuf" or not np.isin(right, (0, 1)).all():
        raise OtptError("expected correct as booleans or zeros and ones, but got other values.")
    return c.astype(np.float64), right.astype(np.bool_)


def check_predictions(predictions: Values, labels: Values) -> tuple[IntArray, IntArray]:
    """Checked (N,) int64 predicted classes and labels."""
    found = []
    for name, values in (("predictions", predictions), ("labels", labels)):
        array = to_numpy(values, name)
        if array.ndim != 1 or array.size == 0:
            raise OtptError(f"expected {name} of shape (N,), N >= 1, but got shape {array.shape}.")
        if array.dtype.kind not in "iu":
            raise OtptError(f"expected {name} as integers, but got {array.dtype}.")
        found.append(array.astype(np.int64))
    if len(found[0]) != len(found[1]):
        raise OtptError(f"expected one label per prediction, but got {len(found[0])} and {len(found[1])} of them.")
    return found[0], found[1]


def of_all(statistic: Statistic, n: int) -> float:
    """The metric itself: that of a resample in which each of the N images is drawn once."""
    return float(statistic(np.ones((1, n)))[0])


def check_count(name: str, count: int, *, most: int | None = None) -> None:
    """Refuse what is no integer from 1 to ``most``."""
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or count < 1 or (most is not None and count > most):
        limits = ">= 1" if most is None else f"from 1 to {most}"
        raise OtptError(f"expected {name} as an integer {limits}, but got {count!r}.")


def check_bins(bins: int, side: str = "right", *, most: int | None = None) -> None:
    """Refuse a number of bins below one or above ``most``, and an unknown side."""
    check_count("bins", bins, most=most)
    if side not in ("right", "left"):
        raise OtptError(f"expected side 'right' for (lo, hi] or 'left' for [lo, hi), but got {side!r}.")
