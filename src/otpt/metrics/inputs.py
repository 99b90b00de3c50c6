"""Inputs of metrics: probabilities (N, C) and labels (N,), or confidence (N,) and correct (N,), as rows.

Every metric is computed from rows, which are protocols: :class:`Confidences` and :class:`Classes` suffice for many
metrics, all others need :class:`Rows`. :class:`DenseRows` derives them from all probabilities; a run stores them in its
shards, with only the large probabilities of each image (:class:`StoredRows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError, describe_error


class TensorLike(Protocol):
    """Methods of ``torch.Tensor`` that convert it to numpy; torch itself need not be imported."""

    def detach(self) -> Self: ...
    def cpu(self) -> Self: ...
    def float(self) -> Self: ...
    def is_floating_point(self) -> bool: ...
    def element_size(self) -> int: ...
    def numpy(self) -> npt.NDArray[np.generic]: ...


Values: TypeAlias = npt.ArrayLike | TensorLike
"""Array, sequence, or tensor of any device and dtype."""
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Floating: TypeAlias = npt.NDArray[np.floating]
"""Array of float32 or float64."""

Key = TypeVar("Key", np.int64, np.float64)

# A row of C probabilities rounded to float16 sums to one within 2^-11 + C·2^-25, rounded to bfloat16 within
# about 2^-9: a tolerance of 0.005 accepts both and still rejects logits, percentages and incomplete rows.
SUM_TOLERANCE = 5e-3

_NO_LOGITS = "pass softmax probabilities, not percentages or logits (RunningMetric accepts logits with logits=True)."

_CHUNK_ENTRIES = 1 << 20  # 8 MiB of float64 at a time, for any N and C


class Confidences(Protocol):
    """Confidence of N images and whether their predictions are correct."""

    @property
    def confidences(self) -> FloatArray:
        """Largest probabilities (N,), at most one."""

    @property
    def correct(self) -> BoolArray:
        """Whether the predictions are the labels (N,)."""


class Classes(Protocol):
    """Predicted classes and labels of N images."""

    @property
    def labels(self) -> IntArray:
        """Class indices (N,)."""

    @property
    def predictions(self) -> IntArray:
        """Most probable classes (N,); of tied classes, the first."""

    @property
    def correct(self) -> BoolArray:
        """Whether the predictions are the labels (N,)."""


class Rows(Confidences, Classes, Protocol):
    """Input of a metric for N images; shapes are (N,)."""

    @property
    def probabilities(self) -> FloatArray:
        """Probabilities of the labels."""

    @property
    def ranks(self) -> IntArray:
        """Number of classes that rank before the label; of tied classes, the first listed ranks higher."""

    @property
    def squares(self) -> FloatArray:
        """Σ_c p_c²."""

    @property
    def entropies(self) -> FloatArray:
        """−Σ_c p_c log p_c in nats."""


class StoredRows(Rows, Protocol):
    """Rows of a run, with the large probabilities of each image."""

    @property
    def top_counts(self) -> IntArray:
        """Number of stored probabilities of each image (N,)."""

    @property
    def top_classes(self) -> IntArray:
        """Classes of the stored probabilities (Σ top_counts,), image after image."""

    @property
    def top_probabilities(self) -> FloatArray:
        """Stored probabilities (Σ top_counts,), with all above the lowest bin."""

    @property
    def class_sums(self) -> FloatArray:
        """Σ_n p_nc (C,)."""


@dataclass(frozen=True, eq=False)
class ConfidenceRows:
    """:class:`Confidences` without probabilities."""

    confidences: FloatArray
    correct: BoolArray


@dataclass(frozen=True, eq=False)
class ClassRows:
    """:class:`Classes` without probabilities."""

    predictions: IntArray
    labels: IntArray

    @property
    def correct(self) -> BoolArray:
        return np.asarray(self.predictions == self.labels)


@dataclass(frozen=True, eq=False)
class DenseRows:
    """:class:`Rows` of all probabilities ``p`` (N, C); each attribute is computed once, on first use."""

    p: Floating
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


InputRows: TypeAlias = DenseRows | ConfidenceRows | ClassRows
"""Rows of validated arguments of a metric."""
AnyRows: TypeAlias = InputRows | StoredRows


def to_numpy(values: Values, name: str) -> npt.NDArray[np.generic]:
    """Convert an array, tensor (any device and dtype) or sequence to numpy; float16 becomes float32."""
    try:
        if hasattr(values, "detach"):
            tensor = values.detach().cpu()
            if tensor.is_floating_point() and tensor.element_size() < 4:
                tensor = tensor.float()  # numpy has no bfloat16
            values = tensor.numpy()
        array = np.asarray(values)
    except ValueError as error:
        raise OtptError(f"expected {name} as one rectangular array, but got rows of unequal length.") from error
    except Exception as error:  # of tensors without values, or of other packages' arrays
        raise OtptError(f"expected {name} as an array of numbers, but got {describe_error(error)}.") from None
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _array(values: Values, name: str, shape: tuple[int | None, ...], kinds: str) -> npt.NDArray[np.generic]:
    """Validate shape (None for any size of at least 1) and dtype kinds."""
    array = to_numpy(values, name)
    fits = array.ndim == len(shape) and all(n > 0 and m in (None, n) for n, m in zip(array.shape, shape, strict=True))
    if not fits:
        expected = ", ".join(letter if n is None else str(n) for n, letter in zip(shape, "NC", strict=False))
        raise OtptError(f"expected {name} of shape ({expected}), one row per image, but got shape {array.shape}.")
    if array.dtype.kind not in kinds:
        raise OtptError(f"expected {name} as {'integers' if kinds == 'iu' else 'numbers'}, but got {array.dtype}.")
    return array


def check_probabilities(probabilities: Values, labels: Values) -> tuple[Floating, IntArray]:
    """Validate (N, C) probabilities, float32 or float64, and (N,) labels."""
    p = cast(Floating, _array(probabilities, "probabilities", (None, None), "f"))
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


def check_confidence(confidence: Values, correct: Values) -> ConfidenceRows:
    """Validate confidences (N,) in [0, 1] and correct flags (N,) and return them as rows."""
    c = _array(confidence, "confidence", (None,), "fiu").astype(np.float64)
    right = _array(correct, "correct", c.shape, "biuf")
    inside = (c >= 0) & (c <= 1)  # false for nan
    if not inside.all():
        at = int(np.argmin(inside))
        raise OtptError(f"expected confidence between 0 and 1, but got {c[at]:.6g} at position {at}.")
    if not np.isin(right, (0, 1)).all():
        raise OtptError("expected correct as booleans or zeros and ones, but got other values.")
    return ConfidenceRows(c, right.astype(np.bool_))


def check_flags(name: str, flags: Values, count: int | None = None) -> BoolArray:
    """Validate flags (N,), given as booleans or zeros and ones."""
    values = _array(flags, name, (count,), "biuf")
    if not np.isin(values, (0, 1)).all():
        raise OtptError(f"expected {name} as booleans or zeros and ones, but got other values.")
    return values.astype(np.bool_)


def check_numbers(name: str, numbers: Values, count: int) -> FloatArray:
    """Validate finite numbers (N,)."""
    values = _array(numbers, name, (count,), "fiu").astype(np.float64)
    if not np.isfinite(values).all():
        raise OtptError(f"expected {name} as finite numbers, but got nan or infinity.")
    return values


def check_classes(predictions: Values, labels: Values) -> ClassRows:
    """Validate predicted classes (N,) and labels (N,) and return them as rows."""
    first = _array(predictions, "predictions", (None,), "iu").astype(np.int64)
    y = _array(labels, "labels", first.shape, "iu").astype(np.int64)
    return ClassRows(first, y)


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


def sums_by(keys: npt.NDArray[Key], values: FloatArray | BoolArray) -> tuple[npt.NDArray[Key], FloatArray]:
    """Sum the columns of ``values`` (R, N) by key (N,); return the sorted keys (G,) and the sums (R, G)."""
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    if not len(distinct):
        return distinct, np.zeros((len(values), 0))
    return distinct, np.add.reduceat(values[:, order], starts, axis=1)
