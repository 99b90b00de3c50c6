"""A shard of a run as one Parquet file: a row per image, of one method under one prompt; and what rows cannot hold.

| column | |
|---|---|
| ``id``, ``index``, ``label`` | the image: its name and position in the data set, its class |
| ``prompt``, ``method`` | how it was predicted |
| ``prediction``, ``correct``, ``confidence`` | the most probable class, whether it is the label, its probability |
| ``probability``, ``rank`` | of the label; number of classes that rank before it |
| ``entropy``, ``squares`` | −Σ p log p in nats, Σ p² |
| ``top_classes``, ``top_probabilities`` | the five most probable classes and every further one of 1 % or more |
| ``mean_cosine`` … | the method's extras: between the text features of different classes; others as methods have them |
| ``set_size``, ``covered``, ``answered`` | of prediction sets and abstention, where a calibration was asked for them |
| ``flags`` | what was out of the ordinary |
| ``error`` | why the image could not be read; all columns from ``prediction`` on are then null |
| ``probabilities`` | all of them, float32; only with ``save_probabilities`` |

The class-wise error (SCE) also needs the sum of each class's probabilities over the images, Σ_n p_nc: it is kept in the
file's metadata. The file carries a checksum of itself there too.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

TOP = 5
KEPT_PROBABILITY = float(np.float32(0.01))
"""Probabilities from here on are kept one by one; so the SCE can be recomputed exactly with up to 100 bins."""

SUM_UNIT = 2.0**-32
"""Sums of probabilities are whole numbers of this unit: exact, so the same however the images are cut into shards."""

COLUMNS = {
    "id": pa.string(),
    "index": pa.int64(),
    "label": pa.int32(),
    "prompt": pa.string(),
    "method": pa.string(),
    "prediction": pa.int32(),
    "correct": pa.bool_(),
    "confidence": pa.float64(),
    "probability": pa.float64(),
    "rank": pa.int32(),
    "entropy": pa.float64(),
    "squares": pa.float64(),
    "top_classes": pa.list_(pa.int32()),
    "top_probabilities": pa.list_(pa.float64()),
}
LAST = {"flags": pa.list_(pa.string()), "error": pa.string()}
OPTIONAL = {"probabilities": pa.list_(pa.float32())}

_MAX_BYTES = 1 << 30  # of a shard's rows in memory
_SEAL = "sha256:" + 64 * "0"
_SEAL_PATTERN = re.compile(rb"sha256:([0-9a-f]{64})")


class CorruptShardError(Exception):
    """A shard that cannot be used: not what was written, or written for another run."""


@dataclass(frozen=True)
class Shard:
    """Rows of one column: images ``start`` … ``stop`` − 1 of a data set under a seed.

    Attributes:
        column: (prompt, method).
        first: where the file begins that they belong to.
        table: the rows, image by image.
        class_sums: (C,) int64, Σ_n p_nc over the readable images, in units of :data:`SUM_UNIT`.
    """

    dataset: str
    seed: int
    column: tuple[str, str]
    first: int
    start: int
    stop: int
    table: pa.Table
    class_sums: npt.NDArray[np.int64]


def joined(earlier: Shard, later: Shard) -> Shard:
    """Two shards of a column, one where the other ends, as one."""
    table = pa.concat_tables([earlier.table, later.table], promote_options="default").combine_chunks()
    sums = earlier.class_sums + later.class_sums
    return replace(later, start=earlier.start, table=table.select(_in_order(table)), class_sums=sums)


def make_table(columns: dict[str, list[Any]]) -> pa.Table:
    """Rows from lists, with the types above; names that are not among them are extras."""
    known = {**COLUMNS, **LAST, **OPTIONAL}
    arrays = {name: pa.array(values, known.get(name, pa.float64())) for name, values in columns.items()}
    table = pa.table(arrays)
    return table.select(_in_order(table))


def _in_order(table: pa.Table) -> list[str]:
    extras = sorted(set(table.column_names) - set(COLUMNS) - set(LAST) - set(OPTIONAL))
    optional = [name for name in OPTIONAL if name in table.column_names]
    return [*COLUMNS, *extras, *LAST, *optional]


def encode_shard(shard: Shard, *, owner: str) -> bytes:
    """The bytes of the file; ``owner`` says which shard of which run it is."""
    metadata = {
        "otpt.owner": owner,
        "otpt.class_sums": base64.b64encode(shard.class_sums.astype("<i8").tobytes()).decode(),
        "otpt.seal": _SEAL,
    }
    sink = pa.BufferOutputStream()
    # Without Arrow's own copy of the schema: Parquet's says the same in one place.
    with pq.ParquetWriter(sink, shard.table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(shard.table)
        writer.add_key_value_metadata(metadata)
    data: bytes = sink.getvalue().to_pybytes()
    # The checksum is that of the file with zeros in its own place; metadata, and so the seal, come last in the file.
    at = data.rindex(_SEAL.encode())
    return data[:at] + b"sha256:" + hashlib.sha256(data).hexdigest().encode() + data[at + len(_SEAL) :]


def decode_shard(data: bytes, *, owner: str, rows: int) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Rows and class sums in ``data``; :class:`CorruptShardError` if it is damaged or not the one that is meant."""
    seals = list(_SEAL_PATTERN.finditer(data))
    if not seals:
        raise CorruptShardError("it has no checksum")
    seal = seals[-1]
    plain = data[: seal.start()] + _SEAL.encode() + data[seal.end() :]
    if hashlib.sha256(plain).hexdigest().encode() != seal[1]:
        raise CorruptShardError("its checksum is wrong")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        metadata = file.metadata.metadata
        if metadata[b"otpt.owner"].decode() != owner:
            raise CorruptShardError("it belongs to another run or place")
        if file.metadata.num_rows != rows:
            raise CorruptShardError(f"it has {file.metadata.num_rows} rows in place of {rows}")
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(group).total_byte_size for group in groups) > _MAX_BYTES:
            raise CorruptShardError("it would unpack to more than any shard holds")
        table = file.read()
        sums = np.frombuffer(base64.b64decode(metadata[b"otpt.class_sums"]), "<i8").astype(np.int64)
    except CorruptShardError:
        raise
    except Exception as error:  # whoever knows the checksum can seal anything
        raise CorruptShardError(f"it is not a table of rows ({type(error).__name__})") from None
    return table.replace_schema_metadata(None), sums
