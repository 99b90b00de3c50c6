"""The Ray engine on a small cluster of this machine: what it refuses; kills of actors are in tests/faults."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from oracles.runs.evaluation_bench import backbone_on, dataset, settings

from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.evaluation.ray import RayEngine


def run(folder: Path, engine: RayEngine, **options: Any) -> Any:
    chosen = settings(methods=["zero-shot", "o-tpt", "tda"], shard_size=1, seeds=(0, 1), views=4)
    given = {"engine": engine, "device": "cpu", "threads": 0, **options}
    return evaluate(dataset(6), backbone_on, chosen, out=folder, **given)


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
