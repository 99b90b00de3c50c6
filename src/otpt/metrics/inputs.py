"""Inputs of metrics: probabilities (N, C) and labels (N,), or confidence (N,) and correct (N,), as rows.

Every metric is computed from :class:`Rows`. :class:`DenseRows` derives them from all probabilities; a run stores them
in its shards, with only the large probabilities of each image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError

Values: TypeAlias = npt.NDArray[Any] | Sequence[Any] | Any
"""Array, sequence, or tensor of any device and dtype."""
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

# A row of C probabilities rounded to float16 sums to one within 2^-11 + C·2^-25, rounded to bfloat16 within
# about 2^-9: a tolerance of 0.005 accepts both and still rejects logits, percentages and incomplete rows.
SUM_TOLERANCE = 5e-3

_NO_LOGITS = "pass softmax probabilities, not percentages or logits (RunningMetric accepts logits with logits=True)."

_CHUNK_ENTRIES = 1 << 20  # 8 MiB of float64 at a time, for any N and C


class Rows(Protocol):
    """Input of a metric for N images; shapes are (N,) unless noted."""

    labels: IntArray
    predictions: IntArray  # most probable classes; of tied classes, the first
    confidences: FloatArray  # largest probabilities, at most one
    correct: BoolArray
    probabilities: FloatArray  # of the labels
    ranks: IntArray  # number of classes that rank before the label; of tied classes, the first listed ranks higher
    squares: FloatArray  # Σ_c p_c²
    entropies: FloatArray  # −Σ_c p_c log p_c in nats
    top_counts: IntArray  # number of stored probabilities of each image
    top_classes: IntArray  # (Σ top_counts,) their classes, image after image
    top_probabilities: FloatArray  # (Σ top_counts,) the stored probabilities, with all above the lowest bin
    class_sums: FloatArray  # (C,) Σ_n p_nc


@dataclass(frozen=True, eq=False)
class DenseRows:
    """:class:`Rows` of all probabilities ``p`` (N, C); each attribute is computed once, on first use."""

    p: npt.NDArray[Any]
    labels: IntArray

    @cached_property
    def predictions(self) -> IntArray:
        return self.p.argmax(axis=1)

    @cached_property
    def confidences(self) -> FloatArray:
        return np.minimum(self.p.max(axis=1).astype(np.float64), 1.0)

    @property
    def correct(self) -> BoolArray:
        return np.asarray(self.predictions == self.labels)

    @cached_property
    def probabilities(self) -> FloatArray:
        return np.take_along_axis(self.p, self.labels[:, None], axis=1)[:, 0].astype(np.float64)

    @cached_property
    def ranks(self) -> IntArray:
        of_label = np.take_along_axis(self.p, self.labels[:, None], axis=1)
        listed_before = np.arange(self.p.shape[1])[None, :] < self.labels[:, None]
        return np.asarray(((self.p > of_label) | ((self.p == of_label) & listed_before)).sum(axis=1))

    @cached_property
    def squares(self) -> FloatArray:
        return np.concatenate([np.square(rows).sum(axis=1) for _, rows in self.chunks()])

    @cached_property
    def entropies(self) -> FloatArray:
        logs = ((rows, np.log(rows, out=np.zeros_like(rows), where=rows > 0)) for _, rows in self.chunks())
        return np.maximum(np.concatenate([-(rows * log).sum(axis=1) for rows, log in logs]), 0.0)  # p rounded above 1

    def chunks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield chunks of consecutive rows in float64, with bounded memory."""
        n, classes = self.p.shape
        rows = max(1, _CHUNK_ENTRIES // classes)
        for start in range(0, n, rows):
            part = slice(start, min(n, start + rows))
            yield part, self.p[part].astype(np.float64)


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


def _array(values: Values, name: str, shape: tuple[int | None, ...], kinds: str) -> npt.NDArray[Any]:
    """Validate shape (None for any size of at least 1) and dtype kinds."""
    array = to_numpy(values, name)
    fits = array.ndim == len(shape) and all(n > 0 and m in (None, n) for n, m in zip(array.shape, shape, strict=True))
    if not fits:
        expected = ", ".join(letter if n is None else str(n) for n, letter in zip(shape, "NC", strict=False))
        raise OtptError(f"expected {name} of shape ({expected}), one row per image, but got shape {array.shape}.")
    if array.dtype.kind not in kinds:
        raise OtptError(f"expected {name} as {'integers' if kinds == 'iu' else 'numbers'}, but got {array.dtype}.")
    return array


def check_probabilities(probabilities: Values, labels: Values) -> tuple[npt.NDArray[Any], IntArray]:
    """Validate (N, C) probabilities, float32 or float64, and (N,) labels."""
    p = _array(probabilities, "probabilities", (None, None), "f")
    y = _array(labels, "labels", (len(p),), "iu").astype(np.int64)
    outside = (y < 0) | (y >= p.shape[1])
    if outside.any():
        at = int(np.argmax(outside))
        raise OtptError(f"expected labels from 0 to {p.shape[1] - 1}, but got {y[at]} at position {at}.")
    for part, rows in DenseRows(p, y).chunks():
        lowest, sums = rows.min(axis=1), rows.sum(axis=1)
        right = (lowest >= 0) & (np.abs(sums - 1.0) <= SUM_TOLERANCE)  # false for nan
        if not right.all():
            at = int(np.argmin(right))
            raise OtptError(
                f"expected probabilities >= 0 whose rows sum to one, but row {part.start + at} sums to "
                f"{sums[at]:.6g} with minimum {lowest[at]:.6g}; {_NO_LOGITS}"
            )
    return p, y


def check_confidence(confidence: Values, correct: Values) -> SimpleNamespace:
    """Validate confidences (N,) in [0, 1] and correct flags (N,) and return them as rows."""
    c = _array(confidence, "confidence", (None,), "fiu").astype(np.float64)
    right = _array(correct, "correct", c.shape, "biuf")
    inside = (c >= 0) & (c <= 1)  # false for nan
    if not inside.all():
        at = int(np.argmin(inside))
        raise OtptError(f"expected confidence between 0 and 1, but got {c[at]:.6g} at position {at}.")
    if not np.isin(right, (0, 1)).all():
        raise OtptError("expected correct as booleans or zeros and ones, but got other values.")
    return SimpleNamespace(confidences=c, correct=right.astype(np.bool_))


def check_classes(predictions: Values, labels: Values) -> SimpleNamespace:
    """Validate predicted classes (N,) and labels (N,) and return them as rows."""
    first = _array(predictions, "predictions", (None,), "iu").astype(np.int64)
    y = _array(labels, "labels", first.shape, "iu").astype(np.int64)
    return SimpleNamespace(predictions=first, labels=y, correct=first == y)


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
    """Sum the columns of ``values`` (R, N) by key (N,); return the sorted keys (G,) and the sums (R, G)."""
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    if not len(found):
        return found, np.zeros((len(values), 0))
    return found, np.add.reduceat(values[:, order], starts, axis=1)
