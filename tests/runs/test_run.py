"""Run folders: growing, resuming, several processes, damage, and folders that are not runs."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from oracles.runs.evaluation_bench import files
from oracles.runs.runs_bench import CLASSES, PROMPT, config, fill, output, write_item

from otpt import OtptError
from otpt.runs import ColumnConfig, DatasetConfig, ModelConfig, Run, RunConfig, Scoring, results_frame
from otpt.runs.config import GROWS, INFORMS

FOUR = ("zero-shot", "tpt", "o-tpt", "radius")


def at_once(folder: Path, run: Run) -> dict[str, Any]:
    """The content of a run that is asked for all that another one holds."""
    return files(fill(folder, run.config).folder)


def test_methods_seeds_images_and_data_sets_one_after_the_other(tmp_path: Path) -> None:
    three, both = FOUR[:3], ("tiny", "emoji/food")
    fill(tmp_path / "grown", config(three[:2]))
    fill(tmp_path / "grown", config(three))
    fill(tmp_path / "grown", config(three, seeds=(3, 0), images=11))
    run = fill(tmp_path / "grown", config(three, seeds=(0, 3), images=11, datasets=both))
    fill(tmp_path / "whole", config(three, seeds=(0, 3), images=11, datasets=both))
    assert files(tmp_path / "grown") == files(tmp_path / "whole")
    assert run.missing() == []
    assert run.progress() == (44, 44)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_requests_and_random_deaths(tmp_path: Path, seed: int) -> None:
    """Each request is abandoned after some shards, also between the columns of an item."""
    chance = random.Random(seed)
    folder = tmp_path / "grown"
    for _ in range(5):
        given = config(
            chance.sample(FOUR, chance.randint(1, 4)),
            images=chance.randint(1, 18),
            seeds=chance.sample((0, 1, 5), chance.randint(1, 2)),
            datasets=chance.sample(("tiny", "Tiny", "other"), chance.randint(1, 2)),
            shard_size=8,
        )
        run = Run.create(folder, given)
        missing = run.missing(given.datasets)
        for item in missing[: chance.randint(0, len(missing))]:
            write_item(run, item, chance.sample(item.columns, chance.randint(0, len(item.columns))))
        kept = {path: path.read_bytes() for path in folder.rglob("*.parquet") if chance.random() < 0.2}
        for path in kept:
            path.unlink()
        for item in run.missing(given.datasets)[:3]:
            write_item(run, item)
        for path, data in kept.items():  # rows that another process wrote meanwhile
            path.write_bytes(data)
    run = fill(folder, Run(folder).config)
    run.tidy()
    assert run.missing() == []
    assert files(fill(folder, run.config).folder) == at_once(tmp_path / "whole", run)
    rows = pd.read_parquet(folder / "rows")
    assert not rows.duplicated(["dataset", "seed", "method", "prompt", "id"]).any()


def test_items_of_columns_that_lack_different_images(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(("a",), images=6))
    fill(tmp_path / "run", config(("b",), images=3))
    asked = config(("a", "b", "c"), images=9)
    run = Run.create(tmp_path / "run", asked)
    found = [(i.start, i.stop, "".join(method for _, method in i.columns)) for i in run.missing(asked.datasets)]
    assert found == [(0, 4, "bc"), (4, 8, "abc"), (8, 9, "abc")]
    fill(tmp_path / "run", asked)
    assert run.progress() == (9, 9)
    assert files(tmp_path / "run") == at_once(tmp_path / "whole", Run(tmp_path / "run"))


def test_the_longer_of_two_shards_counts(tmp_path: Path) -> None:
    """Two processes that were asked for different numbers of images started a shard at the same place."""
    run = fill(tmp_path / "run", config(("a",), images=6))
    short = run.shard_path("tiny", 0, (PROMPT, "a"), 4, 6)
    data = short.read_bytes()
    run = fill(tmp_path / "run", config(("a",), images=8))
    assert not short.exists()
    short.write_bytes(data)
    assert run.missing() == []
    assert run.to_pandas()["index"].tolist() == list(range(8))
    run.remove("tiny", 0, (PROMPT, "a"), 5)
    assert [(item.start, item.stop) for item in run.missing()] == [(4, 8)]
    assert not short.exists()


def test_fewer_images_and_methods_lose_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(FOUR, images=9, seeds=(0, 1)))
    before = files(tmp_path / "run")
    asked = config(("tpt",), images=2)
    assert Run.create(tmp_path / "run", asked).missing(asked.datasets) == []
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"weight": 6.0}, "orthogonality is 18.0 there and 6.0 now"),
        ({"views": "32 views"}, "'64 views' there and '32 views' now"),
        ({"shard_size": 5}, "shard_size"),
        ({"backbone": ModelConfig(name="tiny", fingerprint="xyz")}, "fingerprint"),
        ({"versions": {"otpt": "1"}}, "versions.otpt"),
    ],
)
def test_settings_that_would_change_rows(tmp_path: Path, changes: dict[str, Any], where: str) -> None:
    fill(tmp_path / "run", config())
    before = files(tmp_path / "run")
    with pytest.raises(OtptError, match=where):
        Run.create(tmp_path / "run", config(("tpt", "new"), **changes))
    assert files(tmp_path / "run") == before


def test_settings_that_change_no_row(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(commands=["otpt evaluate tiny"]))
    named = ModelConfig(name="another path to the same weights", fingerprint="abc")
    for _ in range(2):
        given = config(commands=["otpt evaluate again"], backbone=named, scoring=Scoring(n_bins=15, side="left"))
        run = fill(tmp_path / "run", given)
    assert run.config.commands == ["otpt evaluate tiny", "otpt evaluate again"]
    assert run.config.backbone.name == "tiny"
    assert set(results_frame(run).n_bins) == {15}


def test_every_field_decides_unless_it_is_marked() -> None:
    """A field that somebody adds is compared without further ado."""
    free = {
        (record.__name__, name)
        for record in (RunConfig, ModelConfig, DatasetConfig, ColumnConfig)
        for name, field in record.model_fields.items()
        if {GROWS, INFORMS} & set(filter(lambda mark: isinstance(mark, str), field.metadata))
    }
    assert free == {
        ("RunConfig", "scoring"), ("RunConfig", "methods"), ("RunConfig", "datasets"), ("RunConfig", "commands"),
        ("ModelConfig", "name"), ("DatasetConfig", "columns"), ("ColumnConfig", "images"),
    }  # fmt: skip
    request = config()
    for record in (request, request.backbone, request.datasets[0], request.datasets[0].columns[0]):
        decisive = set(record.decisive())
        assert decisive == {name for name in type(record).model_fields if (type(record).__name__, name) not in free}


def test_a_stream_takes_other_seeds_but_no_other_images(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(("a", "tda"), stream=("tda",)))
    run = fill(tmp_path / "run", config(("a", "tda"), stream=("tda",), seeds=(0, 1)))
    before = files(tmp_path / "run")
    for images in (4, 20):
        with pytest.raises(OtptError, match=f"order is '10 images.*{images} images"):
            Run.create(tmp_path / "run", config(("a", "tda"), stream=("tda",), images=images))
    assert before == at_once(tmp_path / "whole", run)
    run.shard_path("tiny", 1, (PROMPT, "tda"), 4, 8).unlink()  # all that follow depend on it
    (item,) = run.missing()
    assert (item.seed, item.start, item.stop, item.in_order) == (1, 0, 10, True)


def test_a_locked_item_is_left_to_its_process(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config())
    first, *_ = run.missing()
    lock = run.lock(first)
    assert lock is not None
    assert run.lock(first) is None
    other = "from filelock import FileLock; import sys; FileLock(sys.argv[1]).acquire(timeout=0)"
    assert subprocess.run([sys.executable, "-c", other, lock.lock_file], capture_output=True).returncode == 1
    write_item(run, first)
    run.unlock(lock)
    assert run.lock(first) is None, "its rows exist"


def test_without_locks_work_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", refuse)
    run = Run.create(tmp_path / "run", config())
    item = run.missing()[0]
    assert run.lock(item) is not None
    assert run.lock(item) is not None


GROW = """
import sys
sys.path.insert(0, sys.argv[1])
from oracles.runs.runs_bench import config, fill
for number in range(3):
    fill(sys.argv[2], config((f"{sys.argv[3]}-{number}", "common"), images=2 * number + 2, shard_size=8))
"""


@pytest.mark.slow
def test_processes_that_grow_one_run_at_the_same_time(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    commands = [[sys.executable, "-c", GROW, tests, str(tmp_path / "run"), name] for name in "ab"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in started:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    run = fill(tmp_path / "run", config(("common",), images=6, shard_size=8))
    assert len(run.columns("tiny")) == 7
    assert run.missing() == []
    assert files(tmp_path / "run") == at_once(tmp_path / "whole", run)


def test_no_wrong_byte_changes_a_row(tmp_path: Path) -> None:
    """A flipped bit is either noticed, or in a part of the file that decides nothing."""
    run = fill(tmp_path / "run", config(("radius",), images=9, shard_size=9))
    path = run.shard_path("tiny", 0, (PROMPT, "radius"), 0, 9)
    data, noticed = path.read_bytes(), 0
    (expected,) = run.shards("tiny", 0, (PROMPT, "radius"))
    places = range(0, len(data), 53)
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            with pytest.warns(UserWarning, match="is damaged"):
                assert list(run.shards("tiny", 0, (PROMPT, "radius"))) == []
            noticed += 1
        except pytest.fail.Exception:
            (found,) = run.shards("tiny", 0, (PROMPT, "radius"))
            assert found.table.equals(expected.table)
            assert np.array_equal(found.class_sums, expected.class_sums)
    assert noticed > 0.6 * len(places)


@pytest.mark.parametrize("damage", [b"", b"not Parquet", None])
def test_a_damaged_shard_is_named_and_computed_again(tmp_path: Path, damage: bytes | None) -> None:
    run = fill(tmp_path / "run", config(("a", "b"), images=6))
    before = files(tmp_path / "run")
    path = run.shard_path("tiny", 0, (PROMPT, "a"), 4, 6)
    other = run.shard_path("tiny", 0, (PROMPT, "a"), 0, 4).read_bytes()
    path.write_bytes(other if damage is None else damage)
    with pytest.warns(UserWarning, match=path.name):
        assert len(run.to_pandas()) == 10
    with pytest.warns(UserWarning, match=path.name):
        run.remove_damaged()
    assert [(item.start, item.stop) for item in run.missing()] == [(4, 6)]
    fill(tmp_path / "run", config(("a", "b"), images=6))
    assert files(tmp_path / "run") == before


def test_images_are_removed_from_the_columns_that_are_named(tmp_path: Path) -> None:
    given = config(("a", "b", "tda"), stream=("tda",), seeds=(0, 1))
    run = fill(tmp_path / "run", given)
    before = files(tmp_path / "run")
    failed = list(run.unreadable())
    assert {row["error"] for *_, row in failed} == {"no image"}
    assert len(failed) == 2 * 3 * sum((seed, column) == (0, (PROMPT, "a")) for _, seed, column, _ in failed) > 0
    run.remove("tiny", 0, (PROMPT, "a"), 5)
    run.remove("tiny", 1, (PROMPT, "tda"), 5)
    assert [(i.seed, i.start, i.stop, i.in_order) for i in run.missing()] == [(0, 4, 8, False), (1, 0, 10, True)]
    fill(tmp_path / "run", given)
    assert files(tmp_path / "run") == before


def test_folders_never_collide(tmp_path: Path) -> None:
    methods = ("a b", "a-b", "A-B", "x" * 300, "x" * 301, "o[λ=1]", "o[λ=-1]", "..", "", "_x", "/etc")
    run = fill(tmp_path / "run", config(methods, datasets=("locks", "Locks", "../x"), images=1))
    folders = {str(run.folder_of(*key)).lower() for key in run.everything()}
    assert len(folders) == 3 * len(methods)
    assert all(Path(folder).is_relative_to(str(tmp_path / "run/rows").lower()) for folder in folders)
    assert run.missing() == []
    assert len(pd.read_parquet(tmp_path / "run/rows")) == len(folders), "readers skip names that begin with _ or ."


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """Continuing a run of someone else would write and delete there."""
    run = fill(tmp_path / "run", config(images=1))
    place = run.folder_of("tiny", 0, (PROMPT, "tpt"))
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(OtptError, match="link"):
        Run(tmp_path / "run")


def test_any_reader_of_parquet_sees_each_row_once_with_all_columns(tmp_path: Path) -> None:
    """Methods have extras of their own, and the first file decides the columns that pandas reads."""
    fill(tmp_path / "run", config(FOUR[:2], images=5))
    run = fill(tmp_path / "run", config(FOUR, images=11, seeds=(0, 1)))
    (tmp_path / "run/rows/+columns.parquet").write_bytes(b"damaged")
    run.tidy()
    keys = ["dataset", "seed", "method", "prompt", "index"]
    found = pd.read_parquet(tmp_path / "run/rows").sort_values(keys, ignore_index=True)
    assert list(map(tuple, found[keys].to_numpy())) == sorted(
        ("tiny", seed, method, PROMPT, index) for seed in (0, 1) for method in FOUR for index in range(11)
    )
    assert found[found.method == "radius"].radius.notna().any()
    expected = run.to_pandas().sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(found, expected, check_like=True)
    assert run.datasets[0].classes == CLASSES


def test_results_frame_has_the_metrics_of_every_key(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config(seeds=(0, 1), datasets=("one", "two")))
    frame = results_frame(run)
    assert len(frame) == 2 * 2 * 2
    assert ((frame.images + frame.unreadable == frame.planned) & (frame.planned == 10)).all()
    own = run.to_pandas().query("dataset == 'two' and seed == 1 and method == 'o-tpt' and error.isna()")
    rows = run.rows("two", 1, (PROMPT, "o-tpt"))
    assert rows is not None
    assert own.confidence.tolist() == rows.confidences.tolist()


def test_metrics_are_read_back_until_shards_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fill(tmp_path / "run", config(("a",)))
    expected = results_frame(run)

    def refuse(*_: object) -> None:
        raise AssertionError("rows were read")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "rows", refuse)
        pd.testing.assert_frame_equal(results_frame(Run(tmp_path / "run")), expected)
        with pytest.raises(AssertionError):
            results_frame(run, n_bins=7)
    run.shard_path("tiny", 0, (PROMPT, "a"), 4, 8).unlink()
    read = [output("tiny", 0, (PROMPT, "a"), index) for index in (0, 1, 2, 3, 8, 9)]
    assert results_frame(run).images.tolist() == [sum(each is not None for each in read)]
    grown = Run.create(tmp_path / "run", config(("a", "b")))
    assert results_frame(grown).query("method == 'b'").planned.tolist() == [10], "a request without a shard"


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    for folder in (tmp_path / "mine", tmp_path / "mine/notes.txt"):
        with pytest.raises(OtptError, match=folder.name):
            Run.create(folder, config())
    with pytest.raises(OtptError, match="nowhere"):
        Run(tmp_path / "nowhere")
    run = fill(tmp_path / "run", config())
    good = json.loads((tmp_path / "run/config.json").read_text())
    for content in ("{", json.dumps({**good, "format": 2}), json.dumps({**good, "datasets": [{"name": 3}]})):
        (tmp_path / "run/config.json").write_text(content)
        with pytest.raises(OtptError, match=r"run"):
            Run(tmp_path / "run")
    (tmp_path / "run/config.json").write_text(json.dumps(good))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OtptError, match=r"00000004-00000008.parquet': Permission denied"):
        run.remove("tiny", 0, (PROMPT, "o-tpt"), 5)
    monkeypatch.undo()
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(OtptError, match="Permission denied"):
            Run.create(tmp_path / "new", config())
        tmp_path.chmod(0o700)
