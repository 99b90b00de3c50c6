"""The rows of a column as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from otpt.runs.run import Column, Run

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """The N readable images of a column, in the order of the data set.

    Attributes:
        indices, labels, predictions, ranks: (N,) integers; ``ranks`` counts the classes before the label.
        confidences, probabilities, entropies, squares, mean_cosines: (N,); ``probabilities`` are those of the labels,
            ``squares`` are Σ p², ``mean_cosines`` nan where a method has none.
        correct: (N,) booleans.
        top_counts: (N,) how many classes are stored of each image; ``top_classes`` and ``top_probabilities`` hold
            them one image after the other.
        class_sums: (C,) Σ_n p_nc.
        flagged: number of images with flags.
        unreadable: number of further images that could not be read.
        table: all columns of the rows.
    """

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
    flagged: int
    unreadable: int
    table: pa.Table

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Names of the images."""
        return tuple(self.table["id"].to_pylist())

    def extra(self, name: str) -> Floats | None:
        """(N,) further numbers of the method, nan where an image has none; None without such a column."""
        return _numbers(self.table[name]) if name in self.table.column_names else None

    @cached_property
    def all_probabilities(self) -> npt.NDArray[np.float32] | None:
        """(N, C) if the run stored them, else None."""
        if "probabilities" not in self.table.column_names:
            return None
        stored = _numbers(self.table["probabilities"].combine_chunks().flatten(), np.float32)
        return stored.reshape(len(self), len(self.class_sums))


def read_rows(run: Run, dataset: str, seed: int, column: Column) -> Rows | None:
    """Read the readable images of a column that exist so far; None without a shard."""
    shards = list(run.shards(dataset, seed, column))
    if not shards:
        return None
    every = pa.concat_tables([shard.table for shard in shards], promote_options="default")
    table = every.filter(every["error"].is_null())
    if (np.diff(_numbers(table["index"])) < 0).any():  # a stream, whose rows are in its own order
        table = table.sort_by("index")
    top, top_probabilities = (table[name].combine_chunks() for name in ("top_classes", "top_probabilities"))
    cosine = "mean_cosine" in table.column_names
    return Rows(
        indices=_numbers(table["index"], np.int64),
        labels=_numbers(table["label"], np.int64),
        predictions=_numbers(table["prediction"], np.int64),
        ranks=_numbers(table["rank"], np.int64),
        confidences=_numbers(table["confidence"]),
        probabilities=_numbers(table["probability"]),
        entropies=_numbers(table["entropy"]),
        squares=_numbers(table["squares"]),
        mean_cosines=_numbers(table["mean_cosine"]) if cosine else np.full(table.num_rows, np.nan),
        correct=_numbers(table["correct"], bool),
        top_counts=_numbers(top.value_lengths(), np.int64),
        top_classes=_numbers(top.flatten(), np.int64),
        top_probabilities=_numbers(top_probabilities.flatten()),
        class_sums=np.sum([shard.class_sums for shard in shards], axis=0),
        flagged=int((_numbers(table["flags"].combine_chunks().value_lengths()) > 0).sum()),
        unreadable=every.num_rows - table.num_rows,
        table=table,
    )


def _numbers(values: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=dtype)
