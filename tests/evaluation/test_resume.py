"""Evaluations that are killed, extended, shared, damaged or out of room end with the rows of an undisturbed one."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
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
)
from oracles.runs.growing_bench import grow, whole

from otpt import OtptError, get_method
from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.evaluation import Progress, duration, evaluate
from otpt.runs import Run
from otpt.workers import ProcessPool
from otpt_ray import RayPool

TWO = ["zero-shot", "o-tpt"]


def start(folder: Path, images: int = 5, **changes: Any) -> Any:
    given = settings(**{"methods": TWO, "shard_size": 2, "limit": images, "views": 4, **changes})
    return evaluate(dataset(9), backbone(), given, out=folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    start(folder)
    return folder


def test_interrupted_it_continues(finished: Path, tmp_path: Path) -> None:
    def stop() -> None:
        if sum(images) > 3:
            raise KeyboardInterrupt

    with computed(stop) as images, pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run")
    start(tmp_path / "run")
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.slow
def test_growing_equals_a_run_made_at_once(tmp_path: Path) -> None:
    """Two methods, two more, a seed, images that end in the middle of shards, a data set, a stream."""
    grow(tmp_path / "grown")
    whole(tmp_path / "whole")
    assert files(tmp_path / "grown") == files(tmp_path / "whole")


def test_a_finished_run_is_not_computed_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.parquet")}
    with computed() as images:
        start(finished)
        start(finished, images=2, methods=["o-tpt"])
    assert images == []
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.parquet")} == before


def test_only_what_is_missing_is_computed(finished: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    shard(tmp_path / "run", "o-tpt", 2, 4).unlink()
    (tmp_path / "run/metrics.json").unlink()
    untouched = shard(tmp_path / "run", "zero-shot", 2, 4).stat().st_mtime_ns
    with computed() as images:
        start(tmp_path / "run")
    assert sum(images) == 2
    assert shard(tmp_path / "run", "zero-shot", 2, 4).stat().st_mtime_ns == untouched
    assert files(tmp_path / "run") == files(finished)


def test_a_damaged_shard_is_named_and_recomputed(finished: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    path = shard(tmp_path / "run", "o-tpt", 2, 4)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=path.name):
        start(tmp_path / "run")
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"shard_size": 3}, "shard_size is 2 there and 3 now"),
        ({"official_precision": True}, "official_precision"),
        ({"features": "float16"}, "'full' there and 'float16' now"),
        ({"augmix": False}, "augmix=on.* there and .*augmix=off"),
        ({"views": 7}, "views"),
        ({"memory_budget": 123}, "memory_budget"),
        ({"family": "shift"}, "'fine-grained' there and 'shift' now"),
        ({"methods": [get_method("o-tpt").override({"lambda": 6})]}, "orthogonality.* there and 6.0 now"),
    ],
)
def test_settings_that_would_change_rows(finished: Path, changes: dict[str, Any], where: str) -> None:
    before = files(finished)
    with pytest.raises(OtptError, match=where):
        start(finished, **changes)
    assert files(finished) == before


def test_other_data_and_other_weights(finished: Path) -> None:
    given = settings(methods=TWO, shard_size=2, views=4)
    with pytest.raises(OtptError, match="data set 'tiny': fingerprint"):
        evaluate(dataset(6), backbone(), given, out=finished)
    with pytest.raises(OtptError, match=r"backbone\.fingerprint"):
        evaluate(dataset(9), tiny_backbone("vit", seed=1), given, out=finished)


@pytest.mark.parametrize(
    ("names", "prompt", "value"),
    [(("pet", "Pet"), "a photo of a", "Pet"), (("cat", "dog"), "an unphotographable", "unphotographable")],
)
def test_classes_and_prompts_are_refused_first(tmp_path: Path, names: tuple[str, str], prompt: str, value: str) -> None:
    data = Dataset("two", names, ["a", "b"], [0, 1], [b"", b""].__getitem__)
    with pytest.raises(OtptError, match=value):
        evaluate(data, backbone(), settings(prompts=[prompt]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.replace, []

    def full(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OtptError, match="No space left on device"):
        start(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.tmp"))
    start(tmp_path / "run")
    assert files(tmp_path / "run") == files(finished)


def test_unreadable_images_are_recorded_and_retried_when_asked(tmp_path: Path) -> None:
    intact = [image(i) for i in range(5)]
    torn = [*intact[:3], b"torn", intact[4]]

    def run(images: list[Any], methods: list[str], out: str = "run", **options: Any) -> Any:
        chosen = settings(methods=methods, shard_size=2, seeds=(0, 1), views=4)
        return evaluate(dataset(images=images), backbone(), chosen, out=tmp_path / out, **options)

    run(torn, TWO)
    assert run(torn, ["tpt"]).unreadable == 1
    assert run(intact, ["tpt"], retry_unreadable=True).unreadable == 0
    again = run(intact, TWO)
    assert again.frame.groupby("method").unreadable.max().to_dict() == {"zero-shot": 1, "o-tpt": 1, "tpt": 0}
    assert list(again.unreadable_images) == [("tiny", "p/3")]
    assert run(intact, [*TWO, "tpt"], retry_unreadable=True).unreadable == 0
    run(intact, [*TWO, "tpt"], "never")
    assert files(tmp_path / "run") == files(tmp_path / "never")


def unpicklable(device: str) -> Backbone:
    raise OtptError(f"no model on {device}")


@pytest.mark.slow
def test_errors_of_workers_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="no model on cpu"):
        evaluate(dataset(2), unpicklable, settings(), out=tmp_path / "run", pool=ProcessPool(1), device="cpu")
    with pytest.raises(OtptError, match="cannot be sent"):
        evaluate(dataset(2), lambda device: None, settings(), out=tmp_path / "run", pool=ProcessPool(2))
    with pytest.raises(OtptError, match="workers is 0"):
        ProcessPool(0)


def dies_once(device: str) -> Backbone:
    try:
        Path(os.environ["OTPT_TEST_DEATH"]).touch(exist_ok=False)
    except FileExistsError:
        return backbone_on(device)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.long
def test_an_evaluation_goes_on_without_a_killed_worker(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTPT_TEST_DEATH", str(tmp_path / "died"))
    given = settings(methods=TWO, shard_size=2, limit=5, views=4)
    evaluate(dataset(9), dies_once, given, out=tmp_path / "run", pool=ProcessPool(2), device="cpu")
    assert (tmp_path / "died").exists()
    assert files(tmp_path / "run", suffix=".parquet") == files(finished, suffix=".parquet")


WAITING = """
import os, sys, time
from pathlib import Path
from otpt.data import Dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.workers import ProcessPool

def wait(device):
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    data = Dataset("x", ["cat", "dog"], ["a", "b"], [0, 1], [b"", b""].__getitem__)
    settings = Evaluation(methods=["zero-shot"])
    evaluate(data, wait, settings, out=Path(sys.argv[1]) / "run", pool=ProcessPool(2))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: int) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)]) as first:
        while len(numbers := [path.name for path in tmp_path.iterdir() if path.name.isdigit()]) < 2:
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(number)
    workers = [psutil.Process(int(number)) for number in numbers if psutil.pid_exists(int(number))]
    _, alive = psutil.wait_procs(workers, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive


def test_progress_off_a_terminal() -> None:
    lines: list[str] = []
    with Progress(log=lines.append, seconds=0.0) as progress:
        progress.start(10, 40)
        progress.update(20)
    assert lines[0] == "10/40 images are already done; 30 are left"
    assert lines[1].startswith("20/40 images, ")
    assert lines[1].endswith(" left")
    assert [duration(s) for s in (5, 65, 7300, 200_000)] == ["5 s", "1 min 5 s", "2 h 1 min", "2 d 7 h"]


def test_progress_counts_what_was_done_before(tmp_path: Path) -> None:
    with Progress(show=False) as progress:
        start(tmp_path / "run", 3)
        given = settings(methods=TWO, shard_size=2, limit=5, views=4)
        evaluate(dataset(9), backbone(), given, out=tmp_path / "run", progress=progress)
    assert (progress.done, progress.total) == (5, 5)
    assert Run(tmp_path / "run").progress() == (5, 5)


def run_on_ray(folder: Path, pool: RayPool, **options: Any) -> Any:
    chosen = settings(methods=["zero-shot", "o-tpt", "tda"], shard_size=1, seeds=(0, 1), views=4)
    given = {"pool": pool, "device": "cpu", "threads": 0, **options}
    return evaluate(dataset(6), backbone_on, chosen, out=folder, **given)


@pytest.mark.parametrize("arguments", [{"actors": (0, None)}, {"actors": (3, 2)}, {"gpus": -1.0}, {"cpus": 0}])
def test_impossible_actors(arguments: dict[str, Any]) -> None:
    with pytest.raises(OtptError, match="expected"):
        RayPool(**arguments)


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OtptError, match="cuda"):
        run_on_ray(tmp_path, RayPool(), device="cuda")
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(OtptError, match=address):
            run_on_ray(tmp_path / "run", RayPool(address))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(OtptError, match=r"otpt\[ray\]"):
        run_on_ray(tmp_path, RayPool())
