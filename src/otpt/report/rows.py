"""The rows of a cell as columns of numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The N readable pictures of a cell, in the order of the data set.

    Attributes:
        ids: names of the pictures.
        indices, labels, predictions, ranks: (N,) integers; ``ranks`` counts the classes before the label.
        confidences, probabilities, entropies, squares, mean_cosines: (N,); ``probabilities`` are those of the labels,
            ``squares`` are Σ p².
        correct: (N,) booleans.
        top_counts: (N,) how many classes are kept of each picture; ``top_classes`` and ``top_probabilities`` hold
            them one picture after the other.
        class_sums: (C,) Σ_n p_nc.
        all_probabilities: (N, C) where the run kept them, else None.
    """

    ids: tuple[str, ...]
    indices: Integers
    labels: Integers
    predictions: Integers
    ranks: Integers
    confidences: Floats
    probabilities: Floats
    entropies: Floats
    squares: Floats
    mean_cosines: Floats
    correct: npt.NDArray[np.bool_]
    top_counts: Integers
    top_classes: Integers
    top_probabilities: Floats
    class_sums: Floats
    all_probabilities: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.ids)


def rows_of(table: pa.Table, class_sums: Floats) -> Rows:
    """The columns of a table of readable pictures."""
    top = table["top_classes"].combine_chunks(), table["top_probabilities"].combine_chunks()
    kept = "probabilities" in table.column_names
    return Rows(
        ids=tuple(table["id"].to_pylist()),
        indices=_integers(table["index"]),
        labels=_integers(table["label"]),
        predictions=_integers(table["prediction"]),
        ranks=_integers(table["rank"]),
        confidences=_floats(table["confidence"]),
        probabilities=_floats(table["probability"]),
        entropies=_floats(table["entropy"]),
        squares=_floats(table["squares"]),
        mean_cosines=_floats(table["mean_cosine"]),
        correct=table["correct"].to_numpy(zero_copy_only=False).astype(bool),
        top_counts=_integers(top[0].value_lengths()),
        top_classes=_integers(top[0].flatten()),
        top_probabilities=_floats(top[1].flatten()),
        class_sums=class_sums,
        all_probabilities=np.array(table["probabilities"].to_pylist(), np.float32) if kept else None,
    )


def _floats(values: Any) -> Floats:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _integers(values: Any) -> Integers:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)
