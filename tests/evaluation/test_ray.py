"""The Ray engine on a small cluster of this machine: the rows of one process, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from oracles.runs.evaluation_bench import backbone_on, dataset, files, settings

from otpt.errors import OtptError
from otpt.evaluation import Progress, evaluate
from otpt.evaluation.ray import RayEngine


def run(folder: Path, engine: RayEngine | None, progress: Progress | None = None, **options: Any) -> Any:
    chosen = settings(methods=["zero-shot", "o-tpt", "tda"], shard_size=1, seeds=(0, 1), views=4)
    given = {"engine": engine, "progress": progress, "device": "cpu", "threads": 0, **options}
    return evaluate(dataset(6), backbone_on, chosen, out=folder, **given)


class KillOne(Progress):
    """Kills one worker process of Ray when the first shard is done, as the kernel would without memory."""

    killed = 0

    def update(self, done: int) -> None:
        super().update(done)
        if not self.killed:
            workers = [child for child in psutil.Process().children(recursive=True) if "_Actor" in child.name()]
            self.killed = workers[0].pid
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.long
def test_one_of_two_workers_killed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ray = pytest.importorskip("ray")
    roots = [str(folder) for folder in Path(__file__).parents[1:3]]
    path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        progress = KillOne(show=False)
        run(tmp_path / "ray", RayEngine(actors=(2, 2)), progress)
    finally:
        ray.shutdown()
    assert progress.killed
    run(tmp_path / "alone", None)
    assert files(tmp_path / "ray") == files(tmp_path / "alone")
    assert capfd.readouterr().out == ""  # it is for results


@pytest.mark.parametrize("arguments", [{"actors": (0, None)}, {"actors": (3, 2)}, {"gpus": -1.0}, {"cpus": 0}])
def test_impossible_actors(arguments: dict[str, Any]) -> None:
    with pytest.raises(OtptError, match="expected"):
        RayEngine(**arguments)


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OtptError, match="cuda"):
        run(tmp_path, RayEngine(), device="cuda")
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(OtptError, match=address):
            run(tmp_path / "run", RayEngine(address))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(OtptError, match=r"otpt\[ray\]"):
        run(tmp_path, RayEngine())
