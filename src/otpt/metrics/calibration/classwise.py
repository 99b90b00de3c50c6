"""The class-wise calibration error (SCE): from all probabilities or from what rows of results keep, plain or resampled.

SCE = (1/C) Σ_c Σ_m |S_cm| / N, with the surplus of each class and bin

    S_cm = Σ_{n: p_nc in bin m} w_n (p_nc − [y_n = c]),

where w_n counts how often image n was drawn; without resampling it is 1. Nearly all N·C probabilities lie in the lowest
bin of their class, so what is there is found as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from otpt.metrics._inputs import FloatArray, IntArray, Statistic, row_chunks
from otpt.metrics.calibration.binning import bin_index, groups


class KeptProbabilities(Protocol):
    """Probabilities as rows of results keep them: the large ones one by one, all of them as sums over the images."""

    @property
    def labels(self) -> IntArray:
        """(N,)."""

    @property
    def probabilities(self) -> FloatArray:
        """(N,) of the labels."""

    @property
    def top_counts(self) -> IntArray:
        """(N,) how many probabilities are kept of each image."""

    @property
    def top_classes(self) -> IntArray:
        """Their classes, one image after the other."""

    @property
    def top_probabilities(self) -> FloatArray:
        """The probabilities themselves; all that lie above the lowest bin are there."""

    @property
    def class_sums(self) -> FloatArray:
        """(C,) Σ_n p_nc."""


def sce(p: npt.NDArray[Any], y: IntArray, bins: int, side: str) -> float:
    """SCE of checked probabilities (N, C) and labels (N,)."""
    n, classes = p.shape

    def parts() -> Iterator[tuple[IntArray, FloatArray, IntArray]]:
        for part, rows in row_chunks(p):
            np.minimum(rows, 1.0, out=rows)
            index = bin_index(rows, bins, side)
            inside = index >= 0
            cell = index + np.arange(classes) * bins
            of_label = (np.arange(len(rows)), y[part])
            yield cell[inside], rows[inside], cell[of_label][inside[of_label]]

    return _error(parts(), np.zeros(classes), n, classes, bins)


def sce_of_kept(kept: KeptProbabilities, bins: int, side: str) -> float:
    """SCE of what rows keep; the same bits for any order of the images."""
    classes = len(kept.class_sums)
    p = np.minimum(kept.top_probabilities, 1.0)
    index = bin_index(p, bins, side)
    above = index > 0
    cell, p = kept.top_classes[above] * bins + index[above], p[above]
    order = np.lexsort((p, cell))
    cell, p = cell[order], p[order]
    rest = kept.class_sums - np.bincount(cell // bins, weights=p, minlength=classes)
    of_label = bin_index(np.minimum(kept.probabilities, 1.0), bins, side)
    inside = of_label >= 0
    label_cell = kept.labels[inside] * bins + of_label[inside]
    return _error([(cell, p, label_cell)], rest, len(kept.labels), classes, bins)


def _error(
    parts: Iterable[tuple[IntArray, FloatArray, IntArray]], rest: FloatArray, n: int, classes: int, bins: int
) -> float:
    """Of parts (cells of probabilities, the probabilities, cells of labels); ``rest`` (C,) is added to lowest bins."""
    surplus = np.zeros(classes * bins)
    for cell, p, label_cell in parts:
        surplus += np.bincount(cell, weights=p, minlength=classes * bins)
        surplus -= np.bincount(label_cell, minlength=classes * bins)
    surplus[::bins] += rest
    return float(np.abs(surplus).sum() / (n * classes))


def sce_statistic(p: npt.NDArray[Any], y: IntArray, bins: int, side: str) -> Statistic:
    """SCE as a function of weights, from checked probabilities (N, C) and labels (N,)."""
    classes = p.shape[1]
    images, cells, surpluses = [], [], []
    for part, rows in row_chunks(p):
        np.minimum(rows, 1.0, out=rows)
        index = bin_index(rows, bins, side)
        right = np.arange(classes)[None, :] == y[part, None]
        # entries in no bin (−1) are zeros: only those of the label have a surplus to take out of the total
        image, column = np.nonzero((index > 0) | ((index < 0) & right))
        images.append(image + part.start)
        cells.append(column * (bins + 1) + index[image, column] + 1)
        surpluses.append((rows - right)[image, column])

    def total(weights: FloatArray) -> FloatArray:
        found = np.zeros((len(weights), classes))
        for part, rows in row_chunks(p):
            np.minimum(rows, 1.0, out=rows)
            rows[np.arange(len(rows)), y[part]] -= 1.0
            found += weights[:, part] @ rows
        return found

    entries = np.concatenate(images), np.concatenate(cells), np.concatenate(surpluses)
    return _statistic(*entries, total, bins=bins, entries_in_lowest=True)


def sce_statistic_of_kept(kept: KeptProbabilities, bins: int, side: str) -> Statistic:
    """SCE as a function of weights, from what rows keep.

    Probabilities that are not kept one by one lie in the lowest bin and are known as sums: over the classes for each
    image, and over the images for each class. An image's sum is divided among the classes as theirs is, so the metric
    itself (all weights one) is exact, and its resamples nearly.
    """
    n, classes = len(kept.labels), len(kept.class_sums)
    p = np.minimum(kept.top_probabilities, 1.0)
    of_image = np.repeat(np.arange(n), kept.top_counts)
    rest_of_class = kept.class_sums - np.bincount(kept.top_classes, weights=p, minlength=classes)
    rest_of_image = np.maximum(1.0 - np.bincount(of_image, weights=p, minlength=n), 0.0)
    whole = rest_of_image.sum()
    fraction = rest_of_image / whole if whole > 0 else np.full(n, 1.0 / n)
    of_label = bin_index(np.minimum(kept.probabilities, 1.0), bins, side)
    inside = of_label >= 0
    # one entry for each kept probability (a zero, in no bin, adds nothing to the lowest) and for each label
    image = np.concatenate([of_image, np.flatnonzero(inside)])
    index = np.concatenate([np.maximum(bin_index(p, bins, side), 0), of_label[inside]])
    cell = np.concatenate([kept.top_classes, kept.labels[inside]]) * (bins + 1) + index + 1
    surplus = np.concatenate([p, np.full(int(inside.sum()), -1.0)])

    def rest(weights: FloatArray) -> FloatArray:
        return np.asarray((weights @ fraction)[:, None] * rest_of_class)

    return _statistic(image, cell, surplus, rest, bins=bins, entries_in_lowest=False)


def _statistic(
    image: IntArray, cell: IntArray, surplus: FloatArray, lowest: Statistic, *, bins: int, entries_in_lowest: bool
) -> Statistic:
    """From entries (image, cell, surplus) with cell = class·(M + 1) + bin + 1, and bin −1 for none.

    ``lowest`` gives the surplus (R, C) of the lowest bins. With ``entries_in_lowest`` that is the surplus of all bins,
    and every entry is taken out of it; otherwise the entries of the lowest bins are added to it.
    """
    order, starts = groups(cell)
    image, surplus = image[order], surplus[order]
    columns, slots = np.divmod(cell[order][starts], bins + 1)
    above = slots > 1
    moved, sign = (np.arange(len(starts)), -1.0) if entries_in_lowest else (np.flatnonzero(~above), 1.0)

    def value(weights: FloatArray) -> FloatArray:
        in_lowest = lowest(weights)
        errors = np.zeros(len(weights))
        if len(starts):
            sums = np.add.reduceat(weights[:, image] * surplus, starts, axis=1)  # (R, filled cells)
            for at in moved:
                in_lowest[:, columns[at]] += sign * sums[:, at]
            errors = np.abs(sums[:, above]).sum(axis=1)
        return np.asarray((np.abs(in_lowest).sum(axis=1) + errors) / (weights.shape[1] * in_lowest.shape[1]))

    return value
