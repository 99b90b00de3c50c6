"""Run folders by somebody else: configurations that lead out of the folder, rows that lie and are sealed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from otpt.methods import get_method
from otpt.methods.names.facts import method_numbers
from otpt.methods.output import Output
from otpt.report import open_results
from otpt.runs import Run, score_run, write_metrics
from otpt.runs.rows import ShardRows
from otpt.runs.shards import Shard, encode_shard
from torture.inputs.kinds import Broken, Input, Kind
from torture.inputs.mutations import as_json, damaged, mutated, odd, storable, text

CLASSES = ("cat", "dog", "red panda", "sea", "pug")
METHODS = ("zero-shot", "tpt", "o-tpt", "tda")
_IMAGES, _SHARD = 10, 4


def config(classes: tuple[str, ...] = CLASSES, dataset: str = "mine", backbone: str = "tiny") -> dict[str, Any]:
    """What an evaluation of four methods on ten images asks of a run."""
    columns = [
        {"method": name, "prompt": {"name": "a photo of a"}, "views": "64 views", "images": {"0": _IMAGES},
         **({"order": "10 images, permuted by the seed"} if name == "tda" else {})}
        for name in METHODS
    ]  # fmt: skip
    return {
        "format": 2,
        "versions": {"otpt": "0", "torch": "2"},
        "backbone": {"name": backbone, "fingerprint": "abc", "architecture": "tiny", "family": "vit",
        "precision": "float32", "device": "cpu"},
        "numbers": {"official_precision": False, "features": "full", "shard_size": _SHARD},
        "scoring": {"bins": 10, "side": "right"},
        "methods": {name: json.loads(json.dumps(method_numbers(get_method(name)))) for name in METHODS},
        "datasets": [{"name": dataset, "source": "mine", "fingerprint": "f", "family": "fine-grained",
                      "classes": list(classes), "columns": columns}],
        "commands": ["otpt evaluate mine --methods tpt"],
    }  # fmt: skip


def write_run(folder: Path, asked: dict[str, Any], ids: Callable[[int], str] = "{}.jpg".format) -> None:
    """A whole run with made-up predictions."""
    run = Run.create(folder, asked)
    classes = len(asked["datasets"][0]["classes"])
    for item in run.missing():
        for column in item.columns:
            for first in range(item.start, item.stop, _SHARD):
                rows = ShardRows(column, classes, save_probabilities=False)
                for index in range(first, min(first + _SHARD, item.stop)):
                    generator = np.random.default_rng([index, len(column[1])])
                    p = generator.dirichlet(np.ones(classes))
                    rows.add(index, ids(index), index % classes, Output(p, int(p.argmax())))
                run.write(rows.shard(item.dataset, item.seed, first=first, start=first))
    write_metrics(run, score_run(run))


@cache
def _good() -> dict[str, bytes]:
    """The files of a run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        write_run(folder, config())
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _hostile_config(rng: random.Random) -> Any:
    content = json.loads(_good()["config.json"])
    choice = rng.random()
    if choice < 0.25:  # out of the folder
        way = rng.choice(("../../../outside", "/etc", "..", ".", "mine/../..", "C:\\x", "\x00", "x/y", "", text(rng)))
        target = content["datasets"][0] if rng.random() < 0.5 else content["datasets"][0]["columns"][0]
        target["folder"] = way
    elif choice < 0.4:  # sizes
        column = rng.choice(content["datasets"][0]["columns"])
        column["images"] = {
            rng.choice(("0", "1", "-1", "x", "9" * 5000, "²")): rng.choice((10**18, -1, 2**31, 1.5, True, 10))
        }
        content["numbers"]["shard_size"] = rng.choice((1, 0, -1, 4, 10**18, 0.5))
    elif choice < 0.9:
        content = mutated(rng, content)
    return content


def _resealed(rng: random.Random, folder: Path, path: Path) -> None:
    """A shard with other rows, sealed as a run seals its own."""
    try:
        run = Run(folder)
        column = run.columns("mine")[0]
        first, stop = (int(part) for part in path.stem.split("-"))
        found = run.read("mine", 0, column, first, stop)
    except Exception:
        return
    if found is None:
        return
    table = found.table
    name = rng.choice(table.column_names)
    position = table.column_names.index(name)
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.list_(pa.int64()), pa.bool_()]
    values: Any = [rng.choice((None, -1, 10**12, 1e308, float("nan"), 0.5, 7)) for _ in range(table.num_rows)]
    choice = rng.random()
    try:
        if choice < 0.5:
            table = table.set_column(
                position, name, pa.array(values, pa.float64()).cast(table.schema.field(name).type, safe=False)
            )
        elif choice < 0.7:
            table = table.set_column(position, name, pa.nulls(table.num_rows, rng.choice(kinds)))
        elif choice < 0.8:
            table = table.remove_column(position)
        elif choice < 0.9:
            table = table.append_column(name, table[name])
        else:
            table = table.append_column(storable(text(rng)), pa.array(["x"] * table.num_rows))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError):
        return
    sums = rng.choice((found.class_sums, found.class_sums[:2], np.full(len(CLASSES), 2**62), np.zeros(0, np.int64)))
    shard = Shard("mine", 0, column, first, first, stop, table, sums)
    path.write_bytes(encode_shard(shard, owner=run._owner("mine", 0, column, path)))


def _sealed_noise(rng: random.Random) -> bytes:
    """Anything with a right checksum."""
    data = rng.randbytes(200) + b"sha256:" + b"0" * 64
    return data[:200] + b"sha256:" + hashlib.sha256(data).hexdigest().encode() + base64.b64encode(b"")


def _run(rng: random.Random, given: Path) -> Input:
    folder = given / "run"
    for name, data in _good().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    shards = sorted(folder.rglob("*.parquet"))
    what = rng.choice(("config", "config", "config", "shard", "reseal", "noise", "names", "link", "metrics"))
    if what == "config":
        (folder / "config.json").write_bytes(as_json(rng, _hostile_config(rng)))
    elif what == "shard":
        path = rng.choice(shards)
        path.write_bytes(damaged(rng, path.read_bytes())[0])
    elif what == "reseal":
        _resealed(rng, folder, rng.choice([path for path in shards if "zero-shot" in str(path)]))
    elif what == "noise":
        rng.choice(shards).write_bytes(_sealed_noise(rng))
    elif what == "names":
        own = rng.choice(shards).parent
        for _ in range(3):
            ends = [rng.choice(("00000000", "00000004", "99999999", "9" * 60, "00000003")) for _ in range(2)]
            (own / f"{'-'.join(ends)}.parquet").write_bytes(shards[0].read_bytes())
    elif what == "link":
        place = rng.choice((folder / "mine", shards[0].parent, shards[0].parent.parent))
        shutil.rmtree(place)
        place.symlink_to(given.parent.parent / "outside")
    else:
        path = rng.choice(list(folder.rglob("*.json")))
        path.write_bytes(as_json(rng, odd(rng)))
    ask = rng.choice((_score, _grow, _results, _commands))
    return Input(f"{what}, {ask.__name__.strip('_')}", lambda: ask(folder))


def _score(folder: Path) -> object:
    run = Run(folder)
    scores = score_run(run)
    write_metrics(run, scores)
    return run.progress(), list(run.unreadable())


def _grow(folder: Path) -> object:
    run = Run.create(folder, config())
    return run.missing(), [run.lacks(item) for item in run.items()]


def _results(folder: Path) -> object:
    results = open_results([folder])
    return [results.score(key) for key in results.keys], [
        results.rows(key).ids for key in results.keys if results.score(key)
    ]


def _commands(folder: Path) -> object:
    """What a person would type to look at it; whatever is printed must not steer the terminal."""
    from otpt.cli import main
    from otpt.errors import OtptError

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = main(["metrics", os.fspath(folder)])
        except SystemExit as end:
            code = int(end.code or 0)
    told = out.getvalue()
    if "\x1b" in told or "\x07" in told:
        raise Broken("control characters reached the terminal")
    if "Traceback" in told:
        raise Broken(f"a traceback was printed: {told[-300:]!r}")
    if code == 2:
        raise OtptError(told.strip().splitlines()[-1] if told.strip() else "nothing was said")
    return code


KINDS = [Kind("run folders", _run, _good)]
