"""A part of a run as one Parquet file: a row for each picture, prompt and method, and what the rows cannot hold.

| column | |
|---|---|
| ``id``, ``index``, ``label`` | the picture: its name and position in the data set, its class |
| ``prompt``, ``method`` | how it was judged |
| ``prediction``, ``correct``, ``confidence`` | the most probable class, whether it is the label, its probability |
| ``probability``, ``rank`` | of the label; number of classes that rank before it |
| ``entropy``, ``squares`` | −Σ p log p in nats, Σ p² |
| ``top_classes``, ``top_probabilities`` | the five most probable classes and every further one of 1 % or more |
| ``mean_cosine`` | between the texts of different classes that the picture was judged by |
| ``flags`` | what was out of the ordinary |
| ``error`` | why the picture could not be read; all columns from ``prediction`` on are then null |
| ``probabilities`` | all of them, float32; only with ``save_probabilities`` |

The class-wise error (SCE) also needs the sum of each class's probabilities over the part's pictures, Σ_n p_nc, for
every prompt and method: it is kept in the file's metadata. The file carries a checksum of itself there too.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

TOP = 5
KEPT_SHARE = float(np.float32(0.01))
"""Probabilities from here on are kept one by one; so the SCE can be recomputed exactly with up to 100 bins."""

SUM_UNIT = 2.0**-32
"""Sums of probabilities are whole numbers of this unit: exact, so the same however the pictures are cut into parts."""

_COLUMNS = {
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
    "mean_cosine": pa.float64(),
    "flags": pa.list_(pa.string()),
    "error": pa.string(),
}
_OPTIONAL = {"probabilities": pa.list_(pa.float32())}

_SEAL = "sha256:" + 64 * "0"
_SEAL_PATTERN = re.compile(rb"sha256:([0-9a-f]{64})")


class CorruptPartError(Exception):
    """A part that cannot be used: not what was written, or written for another run."""


@dataclass(frozen=True)
class Part:
    """What a part holds.

    Attributes:
        table: its rows, picture by picture, and for each picture prompt by prompt and method by method.
        class_sums: (K, C) int64, Σ_n p_nc over the part's readable pictures for each of the K prompts and methods, in
            units of :data:`SUM_UNIT`.
    """

    table: pa.Table
    class_sums: npt.NDArray[np.int64]


def make_table(columns: dict[str, list[Any]]) -> pa.Table:
    """Rows from lists, with the types above."""
    types = {**_COLUMNS, **(_OPTIONAL if "probabilities" in columns else {})}
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def encode_part(part: Part, *, owner: str) -> bytes:
    """The bytes of the file; ``owner`` says which part of which run it is."""
    metadata = {
        "otpt.owner": owner,
        "otpt.class_sums_shape": "{} {}".format(*part.class_sums.shape),
        "otpt.class_sums": base64.b64encode(part.class_sums.astype("<i8").tobytes()).decode(),
        "otpt.seal": _SEAL,
    }
    sink = pa.BufferOutputStream()
    # Without Arrow's own copy of the schema: Parquet's says the same in one place.
    with pq.ParquetWriter(sink, part.table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(part.table)
        writer.add_key_value_metadata(metadata)
    data: bytes = sink.getvalue().to_pybytes()
    # The checksum is that of the file with zeros in its own place; metadata, and so the seal, come last in the file.
    at = data.rindex(_SEAL.encode())
    return data[:at] + b"sha256:" + hashlib.sha256(data).hexdigest().encode() + data[at + len(_SEAL) :]


def decode_part(data: bytes, *, owner: str, rows: int) -> Part:
    """The part in ``data``; :class:`CorruptPartError` if it is damaged or not the one that is meant."""
    seals = list(_SEAL_PATTERN.finditer(data))
    if not seals:
        raise CorruptPartError("it has no checksum")
    seal = seals[-1]
    plain = data[: seal.start()] + _SEAL.encode() + data[seal.end() :]
    if hashlib.sha256(plain).hexdigest().encode() != seal[1]:
        raise CorruptPartError("its checksum is wrong")
    file = pq.ParquetFile(pa.BufferReader(data))
    table, metadata = file.read(), file.metadata.metadata
    if metadata[b"otpt.owner"].decode() != owner:
        raise CorruptPartError("it belongs to another run or place")
    if table.num_rows != rows:
        raise CorruptPartError(f"it has {table.num_rows} rows in place of {rows}")
    shape = tuple(map(int, metadata[b"otpt.class_sums_shape"].split()))
    sums = np.frombuffer(base64.b64decode(metadata[b"otpt.class_sums"]), "<i8").reshape(shape)
    return Part(table.replace_schema_metadata(None), sums.astype(np.int64))
