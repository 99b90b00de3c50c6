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
        return _floats(self.table[name]) if name in self.table.column_names else None

    @cached_property
    def all_probabilities(self) -> npt.NDArray[np.float32] | None:
        """(N, C) if the run stored them, else None."""
        if "probabilities" not in self.table.column_names:
            return None
        kept = self.table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(kept, np.float32).reshape(len(self), len(self.class_sums))


def read_rows(run: Run, dataset: str, seed: int, column: Column) -> Rows | None:
    """Read the readable images of a column that exist so far; None without a shard."""
    tables: list[Any] = []
    sums: Floats | None = None
    total = 0
    for shard in run.shards(dataset, seed, column):
        tables.append(shard.table.filter(shard.table["error"].is_null()))
        sums = shard.class_sums if sums is None else sums + shard.class_sums
        total += shard.table.num_rows
    if sums is None:
        return None
    table = pa.concat_tables(tables, promote_options="default")
    indices = _integers(table["index"])
    if (np.diff(indices) < 0).any():  # a stream, whose rows are in its own order
        order = np.argsort(indices)
        table, indices = table.take(order), indices[order]
    top = table["top_classes"].combine_chunks(), table["top_probabilities"].combine_chunks()
    cosine = "mean_cosine" in table.column_names
    return Rows(
        indices=indices,
        labels=_integers(table["label"]),
        predictions=_integers(table["prediction"]),
        ranks=_integers(table["rank"]),
        confidences=_floats(table["confidence"]),
        probabilities=_floats(table["probability"]),
        entropies=_floats(table["entropy"]),
        squares=_floats(table["squares"]),
        mean_cosines=_floats(table["mean_cosine"]) if cosine else np.full(len(indices), np.nan),
        correct=table["correct"].to_numpy(zero_copy_only=False).astype(bool),
        top_counts=_integers(top[0].value_lengths()),
        top_classes=_integers(top[0].flatten()),
        top_probabilities=_floats(top[1].flatten()),
        class_sums=sums,
        flagged=int((_integers(table["flags"].combine_chunks().value_lengths()) > 0).sum()),
        unreadable=total - table.num_rows,
        table=table,
    )


def _floats(values: Any) -> Floats:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _integers(values: Any) -> Integers:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)
