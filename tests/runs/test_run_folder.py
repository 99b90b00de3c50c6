"""A run folder: what cannot be one, damage and who tells of it, and what killed writers leave."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracles.runs.runs_bench import CLASSES, PROMPT, config, files, fill, output

from otpt import OtptError
from otpt.files import process_space
from otpt.runs import Run, score_run
from otpt.runs.growing import begun
from otpt.runs.rows import ShardRows
from otpt.runs.sealing import sealed
from otpt.runs.shards import CorruptShardError, Shard, decode_shard, encode_shard, joined


def rows(start: int, stop: int, method: str = "radius") -> Shard:
    made = ShardRows((PROMPT, method), len(CLASSES), save_probabilities=True)
    for index in range(start, stop):
        found = output("tiny", 0, (PROMPT, method), index)
        place = (index, f"p/{index}", index % len(CLASSES))
        if found is None or index < 3:
            made.add_unreadable(*place, "no image")
        else:
            made.add(*place, found)
    return made.shard("tiny", 0, first=0, start=start)


def test_no_single_wrong_byte_goes_unnoticed() -> None:
    data = encode_shard(rows(0, 9), owner="ours")
    table, sums = decode_shard(data, owner="ours", rows=9)
    assert (table.num_rows, len(sums)) == (9, len(CLASSES))
    for at in range(0, len(data), 7):
        with pytest.raises(CorruptShardError):
            decode_shard(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], owner="ours", rows=9)
    with pytest.raises(CorruptShardError, match="another run"):
        decode_shard(data, owner="somebody else", rows=9)
    with pytest.raises(CorruptShardError, match="9 rows in place of 8"):
        decode_shard(data, owner="ours", rows=8)


@pytest.mark.parametrize("cut", [1, 3, 5, 8])
def test_shards_that_are_joined_have_the_bytes_of_one(cut: int) -> None:
    """Also where one of them has no readable image, and so no extras."""
    whole = encode_shard(rows(0, 9), owner="ours")
    table, sums = decode_shard(encode_shard(rows(0, cut), owner="x"), owner="x", rows=cut)
    earlier = Shard("tiny", 0, (PROMPT, "radius"), 0, 0, cut, table, sums)
    assert encode_shard(joined(earlier, rows(cut, 9)), owner="ours") == whole


def test_damage_is_told_by_whoever_reads_and_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "run", config())
    path = tmp_path / "run/tiny/seed-0/o-tpt/00000004-00000008.parquet"
    path.write_bytes(b"not Parquet")

    def refuse(*paths: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OtptError, match=r"is damaged .* cannot be moved aside: Permission denied; make its folder"):
            score_run(Run(tmp_path / "run"))
    with pytest.warns(UserWarning, match="was damaged"):
        score_run(Run(tmp_path / "run"))
    assert not path.exists()
    (item,) = Run(tmp_path / "run").missing()
    assert (item.start, item.stop, item.columns) == (4, 8, ((PROMPT, "o-tpt"),))


def test_a_shard_of_another_place_is_not_taken(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config(seeds=(0, 1)))
    here = tmp_path / "run/tiny/seed-0/o-tpt/00000004-00000008.parquet"
    for other in ("seed-1/o-tpt/00000004-00000008", "seed-0/tpt/00000004-00000008", "seed-0/o-tpt/00000000-00000004"):
        here.write_bytes((tmp_path / f"run/tiny/{other}.parquet").read_bytes())
        with pytest.warns(UserWarning, match="it belongs to another run or place"):
            assert run.read("tiny", 0, (PROMPT, "o-tpt"), 4, 8) is None


def _extra(name: str, values: list[Any], kind: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.append_column(name, pa.array(values, kind))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_extra("probabilities", [0.5] * 4, pa.float64()), "its column 'probabilities' is missing or of another type"),
        (_extra("probabilities", [["a"] * len(CLASSES)] * 4, pa.list_(pa.string())), "of another type"),
        (_extra("mean_cosine", [0.5] * 4, pa.float64()), "it has two columns of one name"),
        (_extra("radius", ["wide"] * 4, pa.string()), "its column 'radius' does not hold numbers"),
        (lambda table: table.set_column(15, "flags", pa.nulls(4, pa.list_(pa.string()))), "it has rows with gaps"),
    ],
)
def test_rows_that_no_run_writes_are_quarantined_though_their_checksum_is_right(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    run = fill(tmp_path / "run", config())
    column = (PROMPT, "o-tpt")
    found = run.read("tiny", 0, column, 4, 8)
    assert found is not None
    crafted = replace(found, table=change(found.table))
    run.write(crafted)
    with pytest.warns(UserWarning, match=words):
        assert run.read("tiny", 0, column, 4, 8) is None


def test_a_configuration_of_another_form_is_refused_by_what_is_wrong(tmp_path: Path) -> None:
    given = config()
    for key, value in (("family", 3), ("source", ["here"])):
        path = tmp_path / key / "config.json"
        path.parent.mkdir()
        path.write_bytes(sealed(begun({**given, "datasets": [{**given["datasets"][0], key: value}]})))
        with pytest.raises(OtptError, match=re.escape(f"datasets[0].{key} is {value!r}, which no run has there")):
            Run(path.parent)


def test_a_shard_that_cannot_be_deleted_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fill(tmp_path / "run", config())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OtptError, match=r"Cannot delete .*00000004-00000008.parquet': Permission denied; make its"):
        run.remove("tiny", 0, (PROMPT, "o-tpt"), 5)


def test_names_that_are_not_utf_8_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    given = config()
    given["datasets"][0]["source"] = "/data/f\udcfcr-mich"
    with pytest.raises(OtptError, match=r"cannot be made: datasets\[0\].source is '/data/f.*udcfcr-mich', .* UTF-8"):
        Run.create(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (config(seeds=(10**20,)), "columns[0].images is {'100000000000000000000': 10}"),
        (config(shard_size=2**60), "numbers.shard_size is 1152921504606846976"),
        (config(weight=1e301), "methods is {'tpt': {'objectives': {'orthogonality': 1e+301}}"),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_anything_is_made(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(OtptError, match=f"cannot be made: .*{re.escape(words)}"):
        Run.create(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(OtptError, match="holds other files and no run"):
        Run.create(tmp_path / "mine", config())
    with pytest.raises(OtptError, match="it is a file; expected a folder"):
        Run.create(tmp_path / "mine/notes.txt", config())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    with pytest.raises(OtptError, match="is damaged: it is not JSON"):
        Run.create(tmp_path / "broken", config())
    with pytest.raises(OtptError, match="There is no run configuration"):
        Run(tmp_path / "nowhere")
    (tmp_path / "broken/config.json").write_text(json.dumps({"format": 1, "datasets": []}))
    for opened in (lambda: Run(tmp_path / "broken"), lambda: Run.create(tmp_path / "broken", config())):
        with pytest.raises(OtptError, match="has another format than this version of otpt reads"):
            opened()


def test_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    fill(tmp_path / "run", config())
    folder = tmp_path / "run/tiny/seed-0/tpt"
    name = ".00000000-00000004.parquet"
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    dead = folder / f"{name}.{process_space()}.{done.stdout.strip()}.0.tmp"
    alive = folder / f"{name}.{process_space()}.{os.getpid()}.999.tmp"
    # numbers of processes in another container say nothing here; but nobody writes for hours
    elsewhere = folder / f"{name}.0123456789abcdef.{done.stdout.strip()}.0.tmp"
    long_ago = folder / f"{name}.0123456789abcdef.{done.stdout.strip()}.1.tmp"
    for path in (dead, alive, elsewhere, long_ago):
        path.write_bytes(b"half")
    os.utime(elsewhere, (time.time() - 600, time.time() - 600))
    os.utime(long_ago, (time.time() - 7200, time.time() - 7200))
    Run.create(tmp_path / "run", config())
    assert [path.exists() for path in (dead, alive, elsewhere, long_ago)] == [False, True, True, False]


def test_metrics_are_written_only_if_they_change(tmp_path: Path) -> None:
    fill(tmp_path / "run", config())
    times = {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in files(tmp_path / "run")}
    fill(tmp_path / "run", config())
    assert {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in files(tmp_path / "run")} == times
