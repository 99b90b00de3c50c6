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
from oracles.runs.evaluation_bench import backbone_on, dataset, files, image, settings, small_dataset
from oracles.runs.growing_bench import STREAM

from otpt.cli import main
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import Job, LocalEngine, run_job
from otpt.evaluation.engines import PackedJob
from otpt.evaluation.progress import Counter, ImageDone, ProgressEvent, Started
from otpt.evaluation.ray.engine import RayEngine
from otpt.evaluation.ray.worker import RayWorker, as_text, configure, read_answer
from otpt.runs import Run, WorkItem

pytestmark = pytest.mark.long

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
    roots = [str(folder) for folder in Path(__file__).parents[1:3]]  # of the oracles, and of this module's name
    path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
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
    """Kills one worker process of Ray when the first shard is done, as the kernel would for want of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = 0

    def __call__(self, event: ProgressEvent) -> None:
        super().__call__(event)
        if isinstance(event, ImageDone) and self.workers == 0:
            workers = [child for child in psutil.Process().children(recursive=True) if "RayWorker" in child.name()]
            self.workers = len(workers)
            os.kill(workers[0].pid, signal.SIGKILL)


def job(folder: Path, make: Any = small_dataset) -> Job:
    return Job(backbone_on, [make], settings(shard_size=1, seeds=(0, 1)), folder, device="cpu", threads=0)


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
    return dataset(images=[b"no image", *(dataset(2)[i].source for i in range(2))])


@pytest.fixture
def started(tmp_path: Path) -> Job:
    """A run with its configuration and no shards."""
    chosen = job(tmp_path / "run", broken_dataset)
    config, error, _ = read_answer(configure(PackedJob.of(chosen), str(tmp_path), 1))
    assert error == ""
    Run.create(chosen.folder, config)
    return chosen


def worker_of(chosen: Job, folder: Path, *, lock: bool = True) -> RayWorker:
    return RayWorker(PackedJob.of(chosen), str(folder), 1, lock)


def ask(worker: RayWorker, *items: WorkItem) -> list[tuple[Any, str, list[str]]]:
    texts = [as_text(item) for item in items]
    answers = worker({"item": texts})
    assert answers["item"] == texts
    return [read_answer(answer) for answer in answers["answer"]]


@pytest.mark.equality
def test_worker_reports_what_the_local_engine_reports(started: Job, tmp_path: Path) -> None:
    events: list[ProgressEvent] = []
    local = LocalEngine().run(replace(started, folder=tmp_path / "alone"), events.append)
    images = [each.results for each in events if isinstance(each, ImageDone)]
    told = [[[*column, *result] for column, result in results.items()] for results in images]
    assert events[0] == Started(0, 6)
    assert told[0] == []  # not an image
    worker = worker_of(started, tmp_path)
    assert [found for found, _, _ in ask(worker, *Run(started.folder).items())] == [[each] for each in told]
    assert files(started.folder, suffix=".parquet") == files(local.folder, suffix=".parquet")


def test_worker_skips_what_is_there_and_what_others_have(started: Job, tmp_path: Path) -> None:
    run = Run(started.folder)
    _, one, two, *_ = run.items()
    worker = worker_of(started, tmp_path)
    (first,) = ask(worker, one)
    written = {path: path.stat().st_mtime_ns for path in started.folder.rglob("*.parquet")}
    assert len(written) == len(one.columns)
    assert ask(worker, one) == [first]
    assert {path: path.stat().st_mtime_ns for path in started.folder.rglob("*.parquet")} == written

    hold = "from otpt.runs.locks import Locks; from pathlib import Path; import sys; locks = Locks(Path(sys.argv[1]))"
    hold += f"; print(locks.take({two.lock}), flush=True); input()"
    command = [sys.executable, "-c", hold, str(started.folder / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"True"
        assert ask(worker, two) == [(None, "", [])]
        assert run.lacks(two)
        assert ask(worker_of(started, tmp_path, lock=False), two)[0][0] is not None  # the second round
        assert not run.lacks(two)
        other.communicate(b"\n")


@pytest.mark.equality
def test_worker_computes_a_stream_from_its_beginning(tmp_path: Path) -> None:
    chosen = replace(job(tmp_path / "alone"), settings=settings(methods=["zero-shot", STREAM], shard_size=4))
    local = run_job(chosen, LocalEngine()).run
    other = replace(chosen, folder=tmp_path / "ray")
    run = Run.create(other.folder, local.config | {"datasets": other.asked()})
    stream = run.items()[-1]
    assert stream.in_order
    worker = worker_of(other, tmp_path)
    (first,) = ask(worker, stream)
    assert len(first[0]) == 9
    assert ask(worker, stream) == [first]
    ask(worker, *run.missing())
    assert files(other.folder, suffix=".parquet") == files(local.folder, suffix=".parquet")


def test_worker_that_does_not_see_the_folder(started: Job, tmp_path: Path) -> None:
    elsewhere = replace(started, folder=tmp_path / "elsewhere")
    ((found, error, _),) = ask(worker_of(elsewhere, tmp_path), Run(started.folder).items()[0])
    assert found is None
    assert "does not see the run folder" in error
    assert "share" in error
    assert not (tmp_path / "elsewhere").exists()


def test_worker_that_would_compute_something_else(started: Job, tmp_path: Path) -> None:
    other = replace(started, datasets=[small_dataset])
    ((found, error, _),) = ask(worker_of(other, tmp_path), Run(started.folder).items()[0])
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
    image(0).save(tmp_path / "data" / "cat" / "0.png")
    assert main(["evaluate", str(tmp_path / "data"), "--out", str(tmp_path / "run"), *given]) == 2
    assert told in capsys.readouterr().err
