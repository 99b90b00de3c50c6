"""The Ray engine on a small cluster of this machine: same bytes as one process, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from evaluation_bench import backbone_on, dataset, files, picture, settings, small_dataset

from otpt.cli import main
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import Job, LocalEngine, Run, run_job
from otpt.evaluation.progress import Begun, Counter, News, Seen
from otpt.evaluation.ray_engine import RayEngine
from otpt.evaluation.ray_worker import RayWorker, configure, read_answer

SECONDS = 600  # a watchdog, not a measure: a busy machine may need minutes to start its workers


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def two_workers() -> Iterator[None]:
    """A cluster of two CPUs of which nothing is left afterwards."""
    ray = pytest.importorskip("ray")
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


class KillOne(Counter):
    """Kills one worker process of Ray when the first part is done, as the kernel would for want of memory."""

    def __init__(self) -> None:
        super().__init__(["tiny"], ["a", "b", "c", "d"])
        self.workers = 0

    def __call__(self, news: News) -> None:
        super().__call__(news)
        if isinstance(news, Seen) and self.workers == 0:
            workers = [child for child in psutil.Process().children(recursive=True) if "RayWorker" in child.name()]
            self.workers = len(workers)
            os.kill(workers[0].pid, signal.SIGKILL)


def job(folder: Path, make: Any = small_dataset) -> Job:
    return Job(backbone_on, [make], settings(part_size=1, seeds=(0, 1)), folder, device="cpu", threads=0)


@pytest.mark.equality
def test_one_of_two_workers_killed(two_workers: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    alone = run_job(job(tmp_path / "alone"), LocalEngine())
    reporter = KillOne()
    result = run_job(job(tmp_path / "ray"), RayEngine(actors=(2, 2)), reporter)
    assert reporter.workers == 2
    assert reporter.now == reporter.total == 18
    assert files(result.run.folder) == files(alone.run.folder)
    assert capfd.readouterr().out == ""  # it is for results


def broken_dataset() -> Dataset:
    return dataset(pictures=[b"no picture", *(dataset(2)[i].source for i in range(2))])


@pytest.fixture
def started(tmp_path: Path) -> Job:
    """A run with its configuration and no parts."""
    chosen = job(tmp_path / "run", broken_dataset)
    config, error, _ = read_answer(configure(chosen, str(tmp_path), 1))
    assert error == ""
    Run.create(chosen.folder, config)
    return chosen


def ask(worker: RayWorker, *numbers: int) -> list[tuple[Any, str, list[str]]]:
    answers = worker({"item": list(numbers)})
    assert answers["item"] == list(numbers)
    return [read_answer(answer) for answer in answers["answer"]]


@pytest.mark.equality
def test_worker_tells_what_the_local_engine_tells(started: Job, tmp_path: Path) -> None:
    news: list[News] = []
    local = LocalEngine().run(replace(started, folder=tmp_path / "alone"), news.append)
    told = [[list(result) for result in each.results] for each in news if isinstance(each, Seen)]
    assert news[0] == Begun(0, 6)
    assert told[0] == []  # not a picture
    worker = RayWorker(started, str(tmp_path), 1, True)
    assert [found for found, _, _ in ask(worker, *range(6))] == [[each] for each in told]
    assert files(started.folder, suffix=".parquet") == files(local.folder, suffix=".parquet")


def test_worker_skips_what_is_there_and_what_others_have(started: Job, tmp_path: Path) -> None:
    run = Run(started.folder)
    worker = RayWorker(started, str(tmp_path), 1, True)
    (first,) = ask(worker, 1)
    written = run.path(run.items[1]).stat().st_mtime_ns
    assert ask(worker, 1) == [first]
    assert run.path(run.items[1]).stat().st_mtime_ns == written

    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 2); print(flush=True)"
    command = [sys.executable, "-c", f"{hold}; input()", str(started.folder / "claims.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert ask(worker, 2) == [(None, "", [])]
        assert not run.has(run.items[2])
        assert ask(RayWorker(started, str(tmp_path), 1, False), 2)[0][0] is not None  # the second round
        assert run.has(run.items[2])
        other.communicate(b"\n")


def test_worker_that_does_not_see_the_folder(tmp_path: Path) -> None:
    ((found, error, _),) = ask(RayWorker(job(tmp_path / "elsewhere"), str(tmp_path), 1, True), 0)
    assert found is None
    assert "does not see the run folder" in error
    assert "share" in error
    assert not (tmp_path / "elsewhere").exists()


def test_worker_that_would_compute_something_else(started: Job, tmp_path: Path) -> None:
    other = replace(started, datasets=[small_dataset])
    ((found, error, _),) = ask(RayWorker(other, str(tmp_path), 1, True), 0)
    assert found is None
    assert "another configuration" in error


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(OtptError, match=r"pip install 'otpt\[ray\]'"):
        RayEngine().run(job(tmp_path), print)


@pytest.mark.parametrize("arguments", [{"actors": (0, None)}, {"actors": (3, 2)}, {"gpus": -1.0}, {"cpus": 0}])
def test_impossible_actors(arguments: dict[str, Any]) -> None:
    with pytest.raises(OtptError, match="expected"):
        RayEngine(**arguments)


def test_gpu_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="without a GPU"):
        RayEngine().run(replace(job(tmp_path), device="cuda"), print)


def test_nobody_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(OtptError, match=f"Cannot reach Ray at '{address}'"):
            RayEngine(address).run(job(tmp_path / "run"), print)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--ray-address", "auto"], "--ray-address was given without --engine ray; expected both."),
        (["--ray-gpus", "0"], "--ray-gpus was given without --engine ray; expected both."),
        (["--engine", "ray", "--workers", "2"], "--workers was given with --engine ray; expected --ray-actors there."),
    ],
)
def test_options_that_do_not_go_together(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "cat").mkdir(parents=True)
    picture(0).save(tmp_path / "data" / "cat" / "0.png")
    assert main(["evaluate", str(tmp_path / "data"), "--out", str(tmp_path / "run"), *given]) == 2
    assert told in capsys.readouterr().err
