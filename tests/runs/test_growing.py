"""A run that grows: whatever came first, it ends with the bytes of a run that was asked for everything at once."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from oracles.runs.runs_bench import CLASSES, PROMPT, config, files, fill, write_item

from otpt import OtptError
from otpt.runs import Run, score_run

pytestmark = pytest.mark.slow

FOUR = ("zero-shot", "tpt", "o-tpt", "radius")


def plain(run: Run) -> dict[str, Any]:
    """What a run holds, as one command would ask for it."""
    found = copy.deepcopy(run.config)
    for dataset in found["datasets"]:
        del dataset["folder"]
        for column in dataset["columns"]:
            del column["folder"]
    return found


def at_once(folder: Path, run: Run) -> dict[str, bytes]:
    """The files of a run that is asked for all that another one holds."""
    fill(folder, plain(run))
    return files(folder)


def test_methods_seeds_images_and_data_sets_one_after_the_other(tmp_path: Path) -> None:
    fill(tmp_path / "grown", config(FOUR[:2]))
    before = files(tmp_path / "grown")
    fill(tmp_path / "grown", config(FOUR))
    after = files(tmp_path / "grown")
    assert all(after[name] == data for name, data in before.items() if name.endswith(".parquet"))
    fill(tmp_path / "grown", config(FOUR, seeds=(0, 3)))
    fill(tmp_path / "grown", config(FOUR, seeds=(3, 0), images=30))
    fill(tmp_path / "grown", config(FOUR, seeds=(0, 3), images=30, datasets=("tiny", "emoji/food")))
    fill(tmp_path / "whole", config(FOUR, seeds=(0, 3), images=30, datasets=("tiny", "emoji/food")))
    assert files(tmp_path / "grown") == files(tmp_path / "whole")
    assert Run(tmp_path / "grown").missing() == []


def test_prompts_and_methods_in_any_order_make_the_same_columns(tmp_path: Path) -> None:
    both = (PROMPT, "an example of")
    fill(tmp_path / "methods first", config(FOUR[:2], prompts=both[:1]))
    fill(tmp_path / "methods first", config(FOUR, prompts=both))
    fill(tmp_path / "prompts first", config(FOUR[:2], prompts=both))
    fill(tmp_path / "prompts first", config(FOUR[2:], prompts=both))
    fill(tmp_path / "whole", config(FOUR, prompts=both))
    assert files(tmp_path / "methods first") == files(tmp_path / "prompts first") == files(tmp_path / "whole")
    third = (*both, "a drawing of a")
    fill(tmp_path / "methods first", config(FOUR, prompts=third[1:]))
    fill(tmp_path / "again", config(FOUR, prompts=third))
    assert files(tmp_path / "methods first") == files(tmp_path / "again")


@pytest.mark.parametrize("seed", range(12))
def test_random_requests_and_random_deaths(tmp_path: Path, seed: int) -> None:
    """Each request is abandoned after some shards, also between the columns of an item and in the middle of joining."""
    chance = random.Random(seed)
    folder = tmp_path / "grown"
    for _ in range(8):
        given = config(
            chance.sample(FOUR, chance.randint(1, 4)),
            images=chance.randint(1, 25),
            seeds=chance.sample((0, 1, 5), chance.randint(1, 2)),
            datasets=chance.sample(("tiny", "Tiny", "other"), chance.randint(1, 2)),
            shard_size=8,
        )
        run = Run.create(folder, given)
        missing = run.missing(given["datasets"])
        for item in missing[: chance.randint(0, len(missing))]:
            shorter = [path for path in folder.rglob("*.parquet") if chance.random() < 0.1]
            kept = {path: path.read_bytes() for path in shorter}
            write_item(run, item, chance.sample(item.columns, chance.randint(0, len(item.columns))))
            for path, data in kept.items():  # the longer shard was written, the process died before it deleted this one
                path.write_bytes(data)
    wanted = plain(Run(folder))
    fill(folder, wanted)
    run = Run.create(folder, wanted)  # removes what the dead have left
    assert run.missing() == []
    assert files(folder) == at_once(tmp_path / "whole", run)


def test_columns_that_lack_different_images(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(("a",), images=6))
    fill(tmp_path / "run", config(("b",), images=3))
    asked = config(("a", "b", "c"), images=9)
    run = Run.create(tmp_path / "run", asked)
    found = [(i.first, i.start, i.stop, [method for _, method in i.columns]) for i in run.missing(asked["datasets"])]
    assert found == [
        (0, 3, 4, ["b"]),
        (0, 0, 4, ["c"]),
        (4, 6, 8, ["a"]),
        (4, 4, 8, ["b", "c"]),
        (8, 8, 9, ["a", "b", "c"]),
    ]
    assert run.progress(asked["datasets"]) == (0, 12)  # passes: c needs all images, a and b some of them
    fill(tmp_path / "run", asked)
    assert run.progress() == (9, 9)
    assert files(tmp_path / "run") == at_once(tmp_path / "whole", Run(tmp_path / "run"))


def test_fewer_images_and_methods_lose_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(FOUR, images=9, seeds=(0, 1)))
    before = files(tmp_path / "run")
    asked = config(("tpt",), images=2)
    run = Run.create(tmp_path / "run", asked)
    assert run.missing(asked["datasets"]) == []
    fill(tmp_path / "run", asked)
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": 6.0}, "method 'tpt': objectives.orthogonality is 18.0 there and 6.0 now"),
        ({"views": "32 views"}, "'tpt' on 'tiny': views is '64 views' there and '32 views' now"),
        ({"shard_size": 5}, "numbers.shard_size is 4 there and 5 now"),
        ({"backbone": {"name": "tiny", "fingerprint": "xyz"}}, "backbone.fingerprint is 'abc' there and 'xyz' now"),
        ({"versions": {"otpt": "1"}}, "versions.otpt is '0' there and '1' now"),
        ({"format": 3}, "format is 2 there and 3 now"),
    ],
)
def test_what_would_change_rows_is_refused_with_the_difference(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    fill(tmp_path / "run", config())
    before = files(tmp_path / "run")
    with pytest.raises(OtptError) as caught:
        Run.create(tmp_path / "run", config(("tpt", "new"), **changes))
    assert f"was made with another configuration: {words}" in str(caught.value)
    assert str(caught.value).endswith("Choose another folder, or repeat the settings of this one.")
    assert files(tmp_path / "run") == before


def test_what_changes_no_row_is_taken(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(commands=["otpt evaluate tiny"]))
    named = {"name": "another path to the same weights", "fingerprint": "abc"}
    scoring = {"bins": 15, "side": "left"}
    for _ in range(2):
        run = fill(tmp_path / "run", config(commands=["otpt evaluate again"], backbone=named, scoring=scoring))
    assert run.config["commands"] == ["otpt evaluate tiny", "otpt evaluate again"]
    assert run.config["backbone"]["name"] == "tiny"
    assert {score.metrics.bins for score in score_run(run) if score.metrics} == {15}


def test_a_stream_takes_other_seeds_but_no_other_images(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(("a", "tda"), stream=("tda",)))
    run = fill(tmp_path / "run", config(("a", "tda"), stream=("tda",), seeds=(0, 1)))
    before = files(tmp_path / "run")
    for images in (4, 20):
        words = f"'tda' on 'tiny': order is '10 images, permuted by the seed' there and '{images} images"
        with pytest.raises(OtptError, match=words):
            Run.create(tmp_path / "run", config(("a", "tda"), stream=("tda",), images=images))
    assert files(tmp_path / "run") == before == at_once(tmp_path / "whole", run)
    (tmp_path / "run/tiny/seed-1/tda/00000004-00000008.parquet").unlink()  # all that follow depend on it
    (item,) = run.missing()
    assert (item.seed, item.start, item.stop, item.in_order) == (1, 0, 10, True)
    assert run.lacks(item)
    others = [each.lock for each in run.items() if each != item]
    assert item.lock not in others


@pytest.mark.filterwarnings("ignore:The shard")
@pytest.mark.parametrize("found_by", ["reading", "joining"])
def test_a_damaged_shard_of_an_old_column_is_recomputed(tmp_path: Path, found_by: str) -> None:
    fill(tmp_path / "run", config(FOUR[:2], images=6))
    path = tmp_path / "run/tiny/seed-0/tpt/00000004-00000006.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    if found_by == "reading":
        score_run(Run(tmp_path / "run"))
        assert not path.exists()
    run = fill(tmp_path / "run", config(FOUR, images=7))
    (aside,) = (tmp_path / "run").rglob("*.corrupt")
    aside.unlink()
    assert files(tmp_path / "run") == at_once(tmp_path / "whole", run)


def test_images_are_removed_from_the_columns_that_are_named(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config(("a", "b", "tda"), stream=("tda",), seeds=(0, 1)))
    before = files(tmp_path / "run")
    rows = [row for row in run.unreadable() if (row.seed, row.column) == (0, (PROMPT, "a"))]
    assert {row.reason for row in rows} == {"no image"}
    assert len(list(run.unreadable())) == len(rows) * 2 * 3
    run.remove("tiny", 0, (PROMPT, "a"), 5)
    assert set(before) - set(files(tmp_path / "run")) == {"tiny/seed-0/a/00000004-00000008.parquet"}
    run.remove("tiny", 1, (PROMPT, "tda"), 5)
    left = files(tmp_path / "run")
    assert not [name for name in left if name.startswith("tiny/seed-1/tda/")]
    assert [(i.seed, i.start, i.stop, i.in_order) for i in run.missing()] == [(0, 4, 8, False), (1, 0, 10, True)]
    fill(tmp_path / "run", config(("a", "b", "tda"), stream=("tda",), seeds=(0, 1)))
    assert files(tmp_path / "run") == before


def test_a_shard_that_a_longer_one_replaced_is_read_once_and_deleted(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(("a",), images=2))
    short = tmp_path / "run/tiny/seed-0/a/00000000-00000002.parquet"
    data = short.read_bytes()
    run = fill(tmp_path / "run", config(("a",), images=4))
    assert not short.exists()
    short.write_bytes(data)  # the process was killed between writing the one and deleting the other
    assert [(each.start, each.stop) for each in run.shards("tiny", 0, (PROMPT, "a"))] == [(0, 4)]
    run.tidy()
    assert not short.exists()


def test_folders_never_collide(tmp_path: Path) -> None:
    methods = ("a b", "a-b", "A-B", "x" * 300, "x" * 301)
    run = fill(tmp_path / "run", config(methods, datasets=("locks", "config.json", "metrics.json", "tiny"), images=1))
    folders = [dataset["folder"] for dataset in run.datasets]
    assert folders == ["locks-2", "config.json-2", "metrics.json-2", "tiny"]
    columns = [column["folder"] for column in run.datasets[0]["columns"]]
    assert columns == ["a-b", "a-b-2", "A-B-3", "x" * 100, "x" * 100 + "-2"]
    assert run.missing() == []
    assert len(files(tmp_path / "run")) == 4 * (5 + 1) + 2


GROW = """
import sys
sys.path.insert(0, sys.argv[1])
from oracles.runs.runs_bench import config, fill
for number in range(10):
    fill(sys.argv[2], config((f"{sys.argv[3]}-{number}", "common"), images=number + 1, shard_size=8))
"""


def test_processes_that_grow_one_run_at_the_same_time(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    commands = [[sys.executable, "-c", GROW, tests, str(tmp_path / "run"), name] for name in "abc"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in started:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    run = Run.create(tmp_path / "run", config(("common",), shard_size=8))
    assert len(run.columns("tiny")) == 31
    assert run.missing() == []
    fill(tmp_path / "run", config(("common",), shard_size=8))
    assert files(tmp_path / "run") == at_once(tmp_path / "whole", run)


def test_readers_see_each_row_once(tmp_path: Path) -> None:
    fill(tmp_path / "run", config(FOUR[:2], images=5))
    run = fill(tmp_path / "run", config(FOUR, images=11, seeds=(0, 1)))
    table = pq.read_table(tmp_path / "run/tiny/seed-0")
    seen = sorted(zip(table["method"].to_pylist(), table["index"].to_pylist(), strict=True))
    assert seen == sorted((method, index) for method in FOUR for index in range(11))
    config_file = json.loads((tmp_path / "run/config.json").read_text())
    assert config_file.pop("checksum").startswith("sha256:")
    assert config_file == run.config
    assert config_file["datasets"][0]["classes"] == CLASSES
