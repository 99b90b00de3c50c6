"""Tables of images: CSV, TSV and Parquet."""

from __future__ import annotations

import io
import random
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from otpt.data import Dataset, load_dataset
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import DECOY, damaged, storable, text

_COLUMNS = ("path", "label", "id", "PATH", " Label ", "x", "", "path")


def use(data: Dataset) -> object:
    """What an evaluation asks of a data set before it opens images; and one image."""
    missing = [data.is_file_missing(index) for index in range(min(len(data), 5))]
    return data.fingerprint, data.image_keys(3), missing, data.source(0)


def _csv(rng: random.Random) -> bytes:
    columns = [rng.choice(_COLUMNS) for _ in range(rng.randrange(1, 5))] if rng.random() < 0.4 else ["path", "label"]
    rows = []
    for _ in range(rng.randrange(1, 20)):
        cells = [rng.choice((text(rng), "a.jpg", f"{rng.randrange(99)}.png", DECOY + "secret.jpg")) for _ in columns]
        if rng.random() < 0.1:
            cells = cells[:-1]
        if rng.random() < 0.3:
            cells = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        if rng.random() < 0.05 and cells:
            cells[-1] = "9" * rng.choice((19, 25, 5000))
        rows.append(rng.choice((",", ",", ",", "\t", ";")).join(cells))
    if rng.random() < 0.02:
        rows.append('"' + "x" * 200_000)
    data = "\n".join([",".join(columns), *rows]).encode(rng.choice(("utf-8",) * 9 + ("utf-16",)), "replace")
    return damaged(rng, data)[0] if rng.random() < 0.2 else data


@cache
def _types() -> list[Any]:
    return [
        pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.list_(pa.int32()), pa.timestamp("s"),
        pa.dictionary(pa.int32(), pa.string()), pa.struct([("a", pa.int32())]), pa.null(), pa.decimal128(9, 2),
    ]  # fmt: skip


def _parquet(rng: random.Random) -> bytes:
    rows = rng.choice((0, 1, 5, 40))
    names = rng.choice((["path", "label"], ["path", "label", "id"], ["Path", "path", "label"], ["x"], []))
    arrays = []
    for _ in names:
        kind = rng.choice([pa.string()] * 6 + _types())
        values: list[Any] = [storable(text(rng)) for _ in range(rows)]
        try:
            arrays.append(pa.array([None if rng.random() < 0.1 else each for each in values], pa.string()).cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            arrays.append(pa.nulls(rows, kind))
    if rng.random() < 0.02:  # one row, again and again
        names, arrays = ["path", "label"], [pa.repeat("a.jpg", 3_000_000), pa.repeat("cat", 3_000_000)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=names), sink, compression=rng.choice(("none", "zstd", "snappy")))
    data = sink.getvalue()
    return damaged(rng, data)[0] if rng.random() < 0.5 else data


def _table(rng: random.Random, given: Path) -> Input:
    suffix = rng.choice((".csv", ".csv", ".tsv", ".parquet", ".parquet"))
    data = _parquet(rng) if suffix == ".parquet" else _csv(rng)
    path = given / f"table{suffix}"
    path.write_bytes(data)
    if rng.random() < 0.2:
        (given / "classes.txt").write_text("cat\ndog\nsea\n", encoding="utf-8")
    root = given if rng.random() < 0.3 else None
    return Input(f"{suffix} of {len(data):,} bytes", lambda: use(load_dataset(str(path), root=root)))


KINDS = [Kind("tables", _table, _types)]
