"""Input of the metrics: probabilities (N, C) and labels (N,), or confidence (N,) and correct (N,), as rows.

Every metric is computed from :class:`Rows`, what is known of each image. :class:`DenseRows` computes them from all
probabilities; a run stores them in its shards, with only the large probabilities of each image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError

Values: TypeAlias = npt.NDArray[Any] | Sequence[Any] | Any
"""An array, a sequence, or a tensor of any device and dtype."""
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

# A row of C probabilities rounded to float16 sums to one within 2^-11 + C·2^-25, rounded to bfloat16 within
# about 2^-9: five thousandths admit both, and still refuse logits, percentages and rows that lack a class.
SUM_TOLERANCE = 5e-3

_NO_LOGITS = "pass softmax probabilities, neither logits (RunningMetric takes them, with logits=True) nor percentages."

_CHUNK_ENTRIES = 1 << 20  # 8 MiB of float64 at a time, for any N and C


class Rows(Protocol):
    """What the metrics need of N images; all attributes (N,) unless another shape is given."""

    @property
    def labels(self) -> IntArray:
        """Class indices."""

    @property
    def predictions(self) -> IntArray:
        """Most probable classes."""

    @property
    def confidences(self) -> FloatArray:
        """Largest probabilities."""

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction is the label."""

    @property
    def probabilities(self) -> FloatArray:
        """Probabilities of the labels."""

    @property
    def ranks(self) -> IntArray:
        """Number of classes that rank before the label."""

    @property
    def squares(self) -> FloatArray:
        """Σ_c p_c²."""

    @property
    def entropies(self) -> FloatArray:
        """−Σ_c p_c log p_c in nats."""

    @property
    def top_counts(self) -> IntArray:
        """Number of probabilities stored of each image."""

    @property
    def top_classes(self) -> IntArray:
        """(Σ top_counts,) their classes, image after image."""

    @property
    def top_probabilities(self) -> FloatArray:
        """(Σ top_counts,) the stored probabilities, among them all above the lowest bin."""

    @property
    def class_sums(self) -> FloatArray:
        """(C,) Σ_n p_nc."""


@dataclass(frozen=True, eq=False)
class ConfidenceRows:
    """Rows for metrics that need no more than the confidence."""

    confidences: FloatArray
    correct: BoolArray

    def __len__(self) -> int:
        return len(self.correct)

    @property
    def ranks(self) -> IntArray:
        """Not known from the confidence alone."""
        raise OtptError("an accuracy with top > 1 needs probabilities of shape (N, C) and labels.")


@dataclass(frozen=True, eq=False)
class ClassRows:
    """Rows for metrics that need no more than the predicted class."""

    predictions: IntArray
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows of all probabilities ``p`` (N, C); each attribute is computed once, on first use."""

    p: npt.NDArray[Any]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predictions(self) -> IntArray:
        """Most probable classes; of tied classes, the first."""
        return self.p.argmax(axis=1)

    @cached_property
    def confidences(self) -> FloatArray:
        """Largest probabilities; a maximum that rounding left above one counts as one."""
        return np.minimum(self.p.max(axis=1).astype(np.float64), 1.0)

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction is the label."""
        return np.asarray(self.predictions == self.labels)

    @cached_property
    def probabilities(self) -> FloatArray:
        """Probabilities of the labels."""
        return np.take_along_axis(self.p, self.labels[:, None], axis=1)[:, 0].astype(np.float64)

    @cached_property
    def ranks(self) -> IntArray:
        """Number of classes that rank before the label; of tied classes the one listed first ranks higher."""
        of_label = np.take_along_axis(self.p, self.labels[:, None], axis=1)
        listed_before = np.arange(self.p.shape[1])[None, :] < self.labels[:, None]
        return np.asarray(((self.p > of_label) | ((self.p == of_label) & listed_before)).sum(axis=1))

    @cached_property
    def squares(self) -> FloatArray:
        """Σ_c p_c²."""
        return np.concatenate([np.square(rows).sum(axis=1) for _, rows in self.chunks()])

    @cached_property
    def entropies(self) -> FloatArray:
        """−Σ_c p_c log p_c in nats; a maximum above one (rounding) cannot make one negative."""
        logs = ((rows, np.log(rows, out=np.zeros_like(rows), where=rows > 0)) for _, rows in self.chunks())
        return np.maximum(np.concatenate([-(rows * log).sum(axis=1) for rows, log in logs]), 0.0)

    def chunks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield consecutive rows in float64, few enough that memory does not grow with N·C."""
        return row_chunks(self.p)


def row_chunks(probabilities: npt.NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """Yield consecutive rows (slice, float64 copy) of an array (N, C)."""
    n, classes = probabilities.shape
    rows = max(1, _CHUNK_ENTRIES // classes)
    for start in range(0, n, rows):
        part = slice(start, min(n, start + rows))
        yield part, probabilities[part].astype(np.float64)


def to_numpy(values: Values, name: str) -> npt.NDArray[Any]:
    """Convert an array, tensor (any device and dtype) or sequence to numpy; float16 becomes float32."""
    if hasattr(values, "detach"):  # a tensor; torch itself need not be imported
        tensor = values.detach().cpu()
        if tensor.is_floating_point() and tensor.dtype.itemsize < 4:
            tensor = tensor.float()  # numpy has no bfloat16
        values = tensor.numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise OtptError(f"expected {name} as one rectangular array, but got rows of unequal length.") from error
    return array.astype(np.float32) if array.dtype == np.float16 else array


def check_probabilities(probabilities: Values, labels: Values) -> tuple[npt.NDArray[Any], IntArray]:
    """Validate (N, C) probabilities, float32 or float64, and (N,) labels."""
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
    """Raise for the first row that is not a distribution."""
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


def check_confidence(confidence: Values, correct: Values) -> ConfidenceRows:
    """Validate (N,) confidences in [0, 1] and (N,) flags whether the prediction was correct."""
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
    return ConfidenceRows(c.astype(np.float64), right.astype(np.bool_))


def check_classes(predictions: Values, labels: Values) -> ClassRows:
    """Validate (N,) predicted classes and labels."""
    arrays = [to_numpy(predictions, "predictions"), to_numpy(labels, "labels")]
    for name, array in zip(("predictions", "labels"), arrays, strict=True):
        if array.ndim != 1 or array.size == 0:
            raise OtptError(f"expected {name} of shape (N,), N >= 1, but got shape {array.shape}.")
        if array.dtype.kind not in "iu":
            raise OtptError(f"expected {name} as integers, but got {array.dtype}.")
    if len(arrays[0]) != len(arrays[1]):
        raise OtptError(f"expected one label per prediction, but got {len(arrays[0])} and {len(arrays[1])} of them.")
    return ClassRows(arrays[0].astype(np.int64), arrays[1].astype(np.int64))


def check_count(name: str, count: int, *, most: int | None = None) -> None:
    """Raise unless ``count`` is an integer from 1 to ``most``."""
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or count < 1 or (most is not None and count > most):
        limits = ">= 1" if most is None else f"from 1 to {most}"
        raise OtptError(f"expected {name} as an integer {limits}, but got {count!r}.")


def check_bins(n_bins: int, side: str = "right", *, most: int | None = None) -> None:
    """Validate the number of bins and the side on which they are closed."""
    check_count("n_bins", n_bins, most=most)
    if side not in ("right", "left"):
        raise OtptError(f"expected side 'right' for (lo, hi] or 'left' for [lo, hi), but got {side!r}.")


def sums_by(keys: IntArray | FloatArray, values: FloatArray) -> tuple[npt.NDArray[Any], FloatArray]:
    """Sum the columns of ``values`` (R, N) that have the same key (N,): the sorted keys (G,) and sums (R, G)."""
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    if not len(found):
        return found, np.zeros((len(values), 0))
    return found, np.add.reduceat(values[:, order], starts, axis=1)
