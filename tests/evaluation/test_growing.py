"""An evaluation that grows: further methods, seeds, images and data sets cost only themselves and change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import (
    backbone,
    backbone_on,
    computed,
    dataset,
    files,
    image,
    settings,
    shard,
    small_dataset,
    write_images,
)

from otpt import OtptError, get_method
from otpt.backbones import Backbone
from otpt.evaluation import Job, LocalEngine, ProcessEngine, evaluate, run_job
from otpt.features import FeatureCache
from otpt.runs import Run

pytestmark = pytest.mark.slow

TWO = ["zero-shot", "o-tpt"]
FOUR = [*TWO, "tpt", "tpt+sals"]


def grow(folder: Path, images: int = 5, **changes: Any) -> None:
    evaluate(dataset(9), backbone(), settings(**{"methods": TWO, "limit": images, **changes}), out=folder)


@pytest.mark.equality
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
def test_killed_anywhere_while_it_grows_it_ends_with_the_bytes_of_a_run_made_at_once(tmp_path: Path) -> None:
    """Two methods, two more, a seed, 20 images, a data set, a stream; and two processes that grow one run."""
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(script), str(tmp_path), "growing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed_step"] >= 10
    assert found["killed_moments"] >= 3
    assert found["counts"][-1] == found["shards"]
    assert (found["survivor"], found["both"]) == (0, [0, 0])
    for way in ("grown", "step", "moments", "both", "pair"):
        assert found[f"same_{way}"], way


@pytest.mark.equality
def test_a_further_method_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path / "cache")
    data = dataset(images=write_images(tmp_path / "images", 6))

    def run(folder: Path, methods: list[str], store: FeatureCache | None = cache) -> None:
        evaluate(data, backbone(), settings(methods=methods), out=folder, cache=store)

    run(tmp_path / "run", TWO)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.parquet")}

    def refuse(self: Backbone, *_: object, **__: object) -> None:
        raise AssertionError("the image tower was used")

    with monkeypatch.context() as patch, computed() as images:
        patch.setattr(Backbone, "encode_pixels", refuse)
        run(tmp_path / "run", [*TWO, "tpt"])
    assert sum(images) == 6
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    run(tmp_path / "whole", [*TWO, "tpt"], None)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.equality
def test_columns_that_lack_different_images(tmp_path: Path) -> None:
    grow(tmp_path / "run", 6, methods=["zero-shot"])
    grow(tmp_path / "run", 2, methods=["o-tpt"], prompts=["an example of", "a photo of a"])
    grow(tmp_path / "run", 9, methods=FOUR, prompts=["a photo of a", "an example of"], seeds=[0, 2])
    grow(tmp_path / "whole", 9, methods=FOUR, prompts=["a photo of a", "an example of"], seeds=[0, 2])
    rows = [files(tmp_path / run, suffix=".parquet") for run in ("run", "whole")]
    by_content = [sorted(each.values()) for each in rows]
    assert by_content[0] == by_content[1]  # of the two prompts of o-tpt, the other one came first


@pytest.mark.equality
def test_only_the_prompts_that_are_missing_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from otpt.methods.path import PromptGroup

    predicted: list[str] = []
    real = PromptGroup.steps
    monkeypatch.setattr(PromptGroup, "steps", lambda self, batch: predicted.append(self.prompt) or real(self, batch))
    prompts = ["a photo of a", "an example of", "an image of the"]
    grow(tmp_path / "run", 2, prompts=prompts[:2])
    predicted.clear()
    grow(tmp_path / "run", 2, prompts=prompts)
    assert predicted == prompts[2:] * 2
    grow(tmp_path / "whole", 2, prompts=prompts)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.equality
def test_worker_processes_grow_a_run(tmp_path: Path) -> None:
    def job(folder: Path, methods: list[str], **changes: Any) -> Job:
        return Job(
            backbone_on, [small_dataset], settings(shard_size=2, methods=methods, **changes), folder, device="cpu"
        )

    run_job(job(tmp_path / "run", TWO, limit=5), ProcessEngine(2))
    run_job(job(tmp_path / "run", FOUR), ProcessEngine(2))
    run_job(job(tmp_path / "whole", FOUR), LocalEngine())
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_fewer_images_or_methods_do_nothing_and_lose_nothing(tmp_path: Path) -> None:
    grow(tmp_path / "run", 5, seeds=[0, 1])
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*.*")}
    with computed() as images:
        grow(tmp_path / "run", 2, methods=["o-tpt"])
    assert images == []
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*.*")} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"methods": [get_method("o-tpt").override({"lambda": 6})]},
            r"method 'o-tpt': objectives.orthogonality is \{'fine-grained': 18.0, 'shift': 2.0\} there and 6.0 now",
        ),
        ({"recipe": settings().recipe.__class__(n_views=7)}, "'o-tpt' on 'tiny': views is .*12.* there and .*7.* now"),
        ({"shard_size": 5}, "numbers.shard_size is 4 there and 5 now"),
        ({"memory_budget": 123}, "numbers.memory_budget is .* there and 123 now"),
    ],
)
def test_settings_that_would_change_rows_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    grow(tmp_path / "run", 2)
    before = files(tmp_path / "run")
    with pytest.raises(OtptError, match=f"another configuration: {words}"):
        grow(tmp_path / "run", 3, **{"methods": FOUR, **changes})
    assert files(tmp_path / "run") == before


def test_another_model_is_refused(tmp_path: Path) -> None:
    grow(tmp_path / "run", 2)
    with pytest.raises(OtptError, match=r"another configuration: backbone.fingerprint is"):
        evaluate(dataset(9), tiny_backbone("vit", seed=1), settings(methods=["tpt"]), out=tmp_path / "run")
    with pytest.raises(OtptError, match=r"another configuration: backbone.fingerprint is .*; backbone.architecture is"):
        evaluate(dataset(9), tiny_backbone("resnet"), settings(methods=["tpt"]), out=tmp_path / "run")


@pytest.mark.equality
def test_a_damaged_shard_of_an_old_column_is_recomputed(tmp_path: Path) -> None:
    grow(tmp_path / "run", 6)
    path = shard(tmp_path / "run", "o-tpt", 4, 6)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"4-00000006.parquet' was damaged .* will be recomputed"):
        grow(tmp_path / "run", 7, methods=FOUR)
    path.with_name(f"_{path.name}.corrupt").unlink()
    grow(tmp_path / "whole", 7, methods=FOUR)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_damage_in_a_column_that_is_not_asked_for_is_left_to_its_own_command(tmp_path: Path) -> None:
    grow(tmp_path / "run", 6)
    path = shard(tmp_path / "run", "o-tpt", 4, 6)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="was damaged"):
        grow(tmp_path / "run", 6, methods=["tpt"])
    (item,) = Run(tmp_path / "run").missing()
    assert (item.start, item.stop, [method for _, method in item.columns]) == (4, 6, ["o-tpt"])
    grow(tmp_path / "run", 6)
    assert Run(tmp_path / "run").missing() == []


@pytest.mark.equality
def test_unreadable_images_are_retried_in_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    whole = [image(i) for i in range(7)]
    torn = [*whole[:5], b"torn", whole[6]]

    def run(images: list[Any], methods: list[str], out: str = "run", **options: Any) -> Any:
        chosen = settings(methods=methods, shard_size=3, seeds=(0, 1))
        return evaluate(dataset(images=images), backbone(), chosen, out=tmp_path / out, **options)

    run(torn, TWO)
    assert run(torn, ["tpt"]).unreadable == 1
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.parquet")}
    torn_shards = {
        path.relative_to(tmp_path / "run").as_posix()
        for path in kept
        if path.parent.name == "tpt" and any(pq.read_table(path)["error"].to_pylist())
    }
    assert len(torn_shards) == 2, "one for each seed"
    assert run(whole, ["tpt"], retry_unreadable=True).unreadable == 0
    changed = {path.relative_to(tmp_path / "run").as_posix() for path in kept if path.stat().st_mtime_ns != kept[path]}
    assert changed == torn_shards
    again = run(whole, TWO)
    assert again.unreadable == 1
    assert {score.method: score.unreadable for score in again.scores} == {"zero-shot": 1, "o-tpt": 1, "tpt": 0}
    assert run(whole, [*TWO, "tpt"], retry_unreadable=True).unreadable == 0
    run(whole, [*TWO, "tpt"], "never")
    assert files(tmp_path / "run") == files(tmp_path / "never")


def test_other_bins_change_no_row(tmp_path: Path) -> None:
    grow(tmp_path / "run", 3)
    rows = files(tmp_path / "run", suffix=".parquet")
    grow(tmp_path / "run", 3, bins=15)
    assert files(tmp_path / "run", suffix=".parquet") == rows
    scores = json.loads((tmp_path / "run/metrics.json").read_text())["scores"]
    assert {score["bins"] for score in scores} == {15}
