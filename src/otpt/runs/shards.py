"""A shard: rows of one method under one prompt, data set and seed, as a Parquet file with page checksums.

| column | |
|---|---|
| ``dataset``, ``variant``, ``seed``, ``prompt``, ``method`` | keys of the row |
| ``id``, ``index``, ``label`` | the image: its name and position in the data set, its class |
| ``prediction``, ``correct``, ``confidence`` | the most probable class, whether it is the label, its probability |
| ``probability``, ``rank`` | of the label; number of classes that rank before it |
| ``entropy``, ``squares`` | −Σ p log p in nats, Σ p² |
| ``top_classes``, ``top_probabilities`` | the five most probable classes and every further one of 1 % or more |
| ``mean_cosine`` … | the method's extras |
| ``set_size``, ``covered``, ``answered`` | of prediction sets and abstention, if a calibration was used for them |
| ``flags`` | notes on the prediction |
| ``error`` | why the image could not be read; all columns from ``prediction`` on are then null |
| ``probabilities`` | all of them, float32; with ``save_probabilities`` or several labels per image |

For several labels per image, ``labels`` replaces ``label``, and ``probability`` to ``squares`` are null.

The metadata of the file hold the class names, and the sum of each class's probabilities over the images, Σ_n p_nc,
which the class-wise calibration error needs.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from otpt.files import write_atomically

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

TOP = 5
STORED_PROBABILITY = float(np.float32(0.01))
"""Smallest individually stored probability; makes the SCE exact for up to 100 bins."""

_UNIT = 2.0**32
"""Class sums are sums of multiples of 1/_UNIT, so that adding them is exact in any order."""

COLUMNS = {
    "dataset": pa.string(),
    "variant": pa.string(),
    "seed": pa.int64(),
    "prompt": pa.string(),
    "method": pa.string(),
    "id": pa.string(),
    "index": pa.int64(),
    "label": pa.int32(),
    "prediction": pa.int32(),
    "correct": pa.bool_(),
    "confidence": pa.float64(),
    "probability": pa.float64(),
    "rank": pa.int32(),
    "entropy": pa.float64(),
    "squares": pa.float64(),
    "top_classes": pa.list_(pa.int32()),
    "top_probabilities": pa.list_(pa.float64()),
    "flags": pa.list_(pa.string()),
    "error": pa.string(),
}
_METADATA, _CHECKSUM = "otpt", "otpt.crc32"


class DamagedShard(Exception):
    """Raised for a corrupt shard."""


class PredictedImage(Protocol):
    """Prediction of one image by one method, such as :class:`otpt.methods.Output`."""

    @property
    def probabilities(self) -> Floats: ...

    @property
    def index(self) -> int: ...

    @property
    def confidence(self) -> float: ...

    @property
    def flags(self) -> Sequence[str]: ...

    @property
    def extras(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Shard:
    """Rows of images ``start`` … ``stop`` − 1 (of a stream: in its order) of a column under a seed.

    Attributes:
        column: (prompt, method).
        table: the rows.
        class_sums: (C,) Σ_n p_nc over the readable images.
    """

    dataset: str
    seed: int
    column: tuple[str, str]
    start: int
    stop: int
    table: pa.Table
    class_sums: npt.NDArray[np.float64]


class ShardRows:
    """Collector of the rows of one column.

    Args:
        dataset: unique name of the data set in the run; the rows carry it without ``@variant``.
        column: (prompt, method).
        classes: number of classes.
        save_probabilities: store all probabilities of every row.
    """

    def __init__(
        self,
        dataset: str,
        seed: int,
        column: tuple[str, str],
        classes: int,
        *,
        variant: str = "",
        save_probabilities: bool = False,
    ) -> None:
        self._where = dataset, seed, column
        prompt, method = column
        base = dataset.removesuffix(f"@{variant}") if variant else dataset
        self._key = {"dataset": base, "variant": variant, "seed": seed, "prompt": prompt, "method": method}
        self._class_sums = np.zeros(classes)
        self._rows: list[dict[str, object]] = []
        self._save = save_probabilities

    def add(self, index: int, image_id: str, label: int | tuple[int, ...], output: PredictedImage) -> None:
        """Add a predicted image with its label, or several."""
        self._class_sums += np.rint(np.minimum(output.probabilities, 1.0) * _UNIT) / _UNIT
        row = {**self._image(index, image_id, label), **_values(output, label), **output.extras}
        if self._save:
            row["probabilities"] = output.probabilities.astype(np.float32)
        self._rows.append(row)

    def add_unreadable(self, index: int, image_id: str, label: int | tuple[int, ...], reason: str) -> None:
        """Add an image that could not be read."""
        self._rows.append({**self._image(index, image_id, label), "error": reason})

    def _image(self, index: int, image_id: str, label: int | tuple[int, ...]) -> dict[str, object]:
        name = "labels" if isinstance(label, tuple) else "label"
        return {**self._key, "id": image_id, "index": index, name: label}

    def shard(self, start: int) -> Shard:
        """Return the rows so far as images ``start`` and following."""
        saved = ["probabilities"] if self._save else []
        table = pa.Table.from_pylist(self._rows, schema_of(name for row in [*self._rows, saved] for name in row))
        return Shard(*self._where, start, start + len(self._rows), table, self._class_sums)


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Return the common columns and the columns in ``names``, in a fixed order."""
    types = {"probabilities": pa.list_(pa.float32()), "labels": pa.list_(pa.int32())}
    extras = {name: types.get(name, pa.float64()) for name in sorted({*names} - {*COLUMNS})}
    return pa.schema({**COLUMNS, **extras})


def _values(output: PredictedImage, label: int | tuple[int, ...]) -> dict[str, object]:
    p = output.probabilities
    order = np.argsort(-p, kind="stable")
    stored = order[: max(TOP, int((p >= STORED_PROBABILITY).sum()))]
    prediction: dict[str, object] = {
        "prediction": output.index,
        "correct": output.index in label if isinstance(label, tuple) else output.index == label,
        "confidence": min(output.confidence, 1.0),
        "top_classes": stored,
        "top_probabilities": p[stored],
        "flags": list(output.flags),
    }
    if isinstance(label, tuple):
        return prediction
    of_label = p[label]
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    return {
        **prediction,
        "probability": float(of_label),
        # of tied classes the one listed first ranks higher
        "rank": int((p > of_label).sum() + (p[:label] == of_label).sum()),
        "entropy": max(float(-(p * logs).sum()), 0.0),
        "squares": float(np.square(p).sum()),
    }


def write_table(path: Path, table: pa.Table, metadata: dict[str, str], *, durable: bool = True) -> None:
    """Write a Parquet file with page checksums atomically."""
    sink = pa.BufferOutputStream()
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    write_atomically(path, sink.getvalue().to_pybytes(), durable=durable)


def write_shard(path: Path, shard: Shard, classes: Sequence[str]) -> None:
    """Write a shard; readers detect an incomplete one by its checksums and compute it again."""
    sums = base64.b64encode(shard.class_sums.astype("<f8").tobytes()).decode()
    content = json.dumps({"classes": list(classes), "class_sums": sums, "types": _types(shard.table)})
    write_table(path, shard.table, {_METADATA: content, _CHECKSUM: str(zlib.crc32(content.encode()))}, durable=False)


def read_shard(path: Path, dataset: str, seed: int, column: tuple[str, str], start: int, stop: int) -> Shard:
    """Read a shard, or raise :class:`DamagedShard` if the file has changed since it was written."""
    data = path.read_bytes()
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        content = file.metadata.metadata[_METADATA.encode()]
        if str(zlib.crc32(content)).encode() != file.metadata.metadata[_CHECKSUM.encode()]:
            raise DamagedShard("the checksum of its metadata is wrong")
        stored = json.loads(content)
        sums = np.frombuffer(base64.b64decode(stored["class_sums"]), "<f8")
        table = file.read(use_threads=False).replace_schema_metadata(None)
        if _types(table) != stored["types"] or table.num_rows != stop - start:
            raise DamagedShard("it has other columns, or another number of rows, than were written")
    except DamagedShard:
        raise
    except Exception as error:  # pyarrow raises nearly anything for a damaged file
        raise DamagedShard((str(error).splitlines() or [type(error).__name__])[0]) from None
    return Shard(dataset, seed, column, start, stop, table, sums)


def _types(table: pa.Table) -> list[list[str]]:
    """Return names and types of the columns; item names of lists depend on the reader and are omitted."""
    types = []
    for column in table.schema:
        kind = column.type.value_type if pa.types.is_list(column.type) else column.type
        types.append([column.name, str(kind)])
    return types


class Rows:
    """The N readable images in the shards of a column, in the order of the data set.

    Attributes:
        indices, labels, predictions, ranks: (N,) integers; ``ranks`` counts the classes before the label.
        confidences, probabilities, entropies, squares, mean_cosines: (N,); ``probabilities`` are those of the labels,
            ``squares`` are Σ p², ``mean_cosines`` nan where a method has none.
        correct: (N,) booleans.
        top_counts: (N,) number of stored classes of each image; ``top_classes`` and ``top_probabilities`` hold them
            one image after the other.
        class_sums: (C,) Σ_n p_nc.
        flagged: number of images with flags.
        unreadable: number of further images that could not be read.
        table: all columns of the rows.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        table, self.unreadable = _readable(shards)
        if (np.diff(_floats(table["index"])) < 0).any():  # a stream, whose rows are in its own order
            table = table.sort_by("index")
        self.table = table
        self.class_sums: Floats = np.sum([shard.class_sums for shard in shards], axis=0)
        self.indices: Integers = _numbers(table["index"], np.int64)
        self.labels: Integers = _numbers(table["label"], np.int64)
        self.predictions: Integers = _numbers(table["prediction"], np.int64)
        self.ranks: Integers = _numbers(table["rank"], np.int64)
        self.confidences: Floats = _floats(table["confidence"])
        self.probabilities: Floats = _floats(table["probability"])
        self.entropies: Floats = _floats(table["entropy"])
        self.squares: Floats = _floats(table["squares"])
        cosines = self.extra("mean_cosine")
        self.mean_cosines: Floats = np.full(len(self), np.nan) if cosines is None else cosines
        self.correct: npt.NDArray[np.bool_] = _numbers(table["correct"], np.bool_)
        top = table["top_classes"].combine_chunks()
        self.top_counts: Integers = _numbers(top.value_lengths(), np.int64)
        self.top_classes: Integers = _numbers(top.flatten(), np.int64)
        self.top_probabilities: Floats = _floats(table["top_probabilities"].combine_chunks().flatten())
        self.flagged = int((_floats(table["flags"].combine_chunks().value_lengths()) > 0).sum())

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Names of the images."""
        return tuple(self.table["id"].to_pylist())

    def extra(self, name: str) -> Floats | None:
        """Return an extra column (N,) of the method, nan where undefined, or None if it does not exist."""
        return _floats(self.table[name]) if name in self.table.column_names else None

    @cached_property
    def all_probabilities(self) -> npt.NDArray[np.float32] | None:
        """(N, C) if the run stored them, else None."""
        if "probabilities" not in self.table.column_names:
            return None
        stored = _numbers(self.table["probabilities"].combine_chunks().flatten(), np.float32)
        return stored.reshape(len(self), len(self.class_sums))


class LabelRows:
    """The N readable images in the shards of a column with several labels per image.

    Attributes:
        present: (N, C) booleans.
        probabilities: (N, C), as stored.
        unreadable: number of further images that could not be read.
    """

    flagged = 0

    def __init__(self, shards: Sequence[Shard]) -> None:
        table, self.unreadable = _readable(shards)
        self.present = np.zeros((table.num_rows, len(shards[0].class_sums)), bool)
        for row, labels in zip(self.present, table["labels"].to_pylist(), strict=True):
            row[labels] = True
        stored = _floats(table["probabilities"].combine_chunks().flatten())
        self.probabilities: Floats = stored.reshape(self.present.shape)

    def __len__(self) -> int:
        return len(self.present)


def _readable(shards: Sequence[Shard]) -> tuple[pa.Table, int]:
    """Return the rows of readable images and the number of unreadable ones."""
    table = pa.concat_tables([shard.table for shard in shards], promote_options="default")
    readable = table.filter(table["error"].is_null())
    return readable, table.num_rows - readable.num_rows


def _floats(values: pa.ChunkedArray) -> Floats:
    return _numbers(values, np.float64)


def _numbers(values: pa.ChunkedArray, dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=dtype)
