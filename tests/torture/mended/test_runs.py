"""Faults that the campaign found in run folders, each with the smallest change that showed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from oracles.runs.runs_bench import MadeUp, config

from otpt.errors import OtptError
from otpt.runs import Run, score_run
from otpt.runs.rows import ShardRows

pytestmark = pytest.mark.slow


def changed(folder: Path, change: Any) -> Path:
    """A run, with a change to its configuration."""
    Run.create(folder, config())
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("way", ["../outside", "/etc", "..", ".", "", "a/b", "a\\b", "\0", 7])
@pytest.mark.parametrize("of_column", [False, True])
def test_a_run_does_not_lead_out_of_its_folder(way: Any, of_column: bool, tmp_path: Path) -> None:
    """otpt metrics wrote its files, and tidying deleted shards, wherever config.json said."""

    def change(content: Any) -> None:
        dataset = content["datasets"][0]
        (dataset["columns"][0] if of_column else dataset)["folder"] = way

    with pytest.raises(OtptError, match="is damaged"):
        Run(changed(tmp_path / "run", change))


def test_a_link_out_of_a_run_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "run", lambda _: None)
    (tmp_path / "outside").mkdir()
    (folder / "tiny").symlink_to(tmp_path / "outside")
    with pytest.raises(OtptError, match="leads out of it"):
        Run(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("datasets"),
        lambda content: content["numbers"].update(shard_size=0),
        lambda content: content["datasets"][0].pop("classes"),
        lambda content: content["datasets"][0]["columns"][0].update(images={"x": 3}),
        lambda content: content["datasets"][0]["columns"][0].update(images={"0": 10**18}),
        lambda content: content["datasets"][0]["columns"][0].update(method="unknown"),
        lambda content: content["methods"]["tpt"].update(objectives={"entropy": "x"}),
        lambda content: content.update(commands=[3]),
    ],
)
def test_a_damaged_configuration_of_a_run(change: Any, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="is damaged"):
        Run(changed(tmp_path / "run", change))


def test_an_empty_range_of_a_stream_is_not_walked_for_ever(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(["tda"], stream=["tda"]))
    folder = run.folder_of("tiny", 0, run.columns("tiny")[0])
    folder.mkdir(parents=True)
    (folder / "00000000-00000000.parquet").write_bytes(b"")
    assert run.missing()


def test_rows_that_are_sealed_and_wrong_are_recomputed(tmp_path: Path) -> None:
    """Whoever knows the checksum can seal anything: classes that do not exist made the metrics fail."""
    run = Run.create(tmp_path / "run", config(["tpt"], images=4))
    (item,) = run.missing()
    rows = ShardRows(item.columns[0], 7, save_probabilities=False)
    for index in range(4):
        rows.add(index, f"{index}", index, MadeUp(np.full(7, 1 / 7)))
    shard = rows.shard("tiny", 0, first=0, start=0)
    wrong = shard.table.set_column(2, "label", pa.array([99] * 4, pa.int32()))
    object.__setattr__(shard, "table", wrong)
    run.write(shard)
    with pytest.warns(UserWarning, match="'label' has values outside"):
        scores = score_run(run)
    assert scores[0].metrics is None
    assert run.missing() == [item]
