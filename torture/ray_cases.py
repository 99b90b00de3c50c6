"""A Ray worker and a Ray machine that die: in a process of their own, since a cluster starts threads.

``python -m torture.ray_cases worker|node FOLDER`` runs one; exit code 0 if the run has the bytes of one process.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.paths import TESTS

_PATIENCE = 900.0  # seconds: a busy machine may need minutes to start a cluster
_NO_CLUSTER = 77
_ROOT = Path(__file__).parent.parent


class NoClusterError(Exception):
    """Ray could not be started here, so that nothing was tried."""


def has_ray() -> bool:
    """Whether it is installed."""
    return find_spec("ray") is not None


def ray_cases(folder: Path) -> dict[str, Callable[[Random], tuple[str, str, tuple[str, str]]]]:
    """By kind."""
    return {f"a Ray {what} killed": partial(_trial, what, folder) for what in ("worker", "node")}


def _trial(what: str, folder: Path, random: Random) -> tuple[str, str, tuple[str, str]]:
    command = [sys.executable, "-m", "torture.ray_cases", what, str(folder / f"ray-{what}-{random.randrange(10**6)}")]
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, cwd=_ROOT, env=plain, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode == _NO_CLUSTER:
        raise NoClusterError(done.stderr)
    wrong = ("", "") if done.returncode == 0 else ("unexpected end", done.stdout + done.stderr)
    return "", "same bytes", wrong


def main() -> None:
    """One of the two."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    sys.path.insert(0, str(TESTS))
    import psutil
    import ray
    from oracles.runs.evaluation_bench import (  # type: ignore[import-not-found]
        backbone_on,
        files,
        settings,
        small_dataset,
    )
    from ray.cluster_utils import Cluster

    from otpt.evaluation import Job, LocalEngine, run_job
    from otpt.evaluation.progress import Counter, ImageDone, ProgressEvent
    from otpt.evaluation.ray.engine import RayEngine

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    try:
        cluster: Any = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        second: Any = cluster.add_node(**small)
    except Exception as error:  # Ray has no class of its own for it
        print(f"Ray did not start: {error}", file=sys.stderr)
        sys.exit(_NO_CLUSTER)
    path = os.pathsep.join([str(_ROOT), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )

    class Kill(Counter):
        """When the first image is done."""

        killed = False

        def __call__(self, event: ProgressEvent) -> None:
            super().__call__(event)
            if isinstance(event, ImageDone) and not self.killed:
                self.killed = True
                if what == "node":
                    cluster.remove_node(second, allow_graceful=False)
                else:
                    children = psutil.Process().children(recursive=True)
                    workers = [each for each in children if "RayWorker" in each.name()]
                    os.kill(min(each.pid for each in workers), signal.SIGKILL)

    def job(name: str) -> Job:
        chosen = settings(shard_size=1, seeds=(0, 1))
        return Job(backbone_on, [small_dataset], chosen, folder / name, device="cpu", threads=0)

    alone = run_job(job("alone"), LocalEngine())
    reporter = Kill()
    result = run_job(job("ray"), RayEngine(actors=(2, 2)), reporter)
    ray.shutdown()
    cluster.shutdown()
    assert reporter.killed
    assert files(result.run.folder) == files(alone.run.folder), "other bytes"


if __name__ == "__main__":
    main()
