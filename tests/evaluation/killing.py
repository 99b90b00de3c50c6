"""``python killing.py FOLDER WAY KILLS``: kill an evaluation again and again and continue; prints JSON.

The model is loaded once; every attempt is a forked process that SIGKILL ends, at one of its writing system calls or at
a random moment. WAY is "step", "moments", "pair" (two processes, one killed) or "growing".
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

torch.set_num_threads(1)  # before the first fork: a forked copy has no other threads

from oracles.runs.evaluation_bench import backbone, dataset, files, settings  # noqa: E402
from oracles.runs.growing_bench import grow, whole  # noqa: E402

from otpt.evaluation import evaluate  # noqa: E402

Work = Callable[[Path], Any]


def run(folder: Path) -> None:
    chosen = settings(methods=["zero-shot", "o-tpt"], views=4, shard_size=2, seeds=(0, 1))
    evaluate(dataset(8), backbone(), chosen, out=folder)


def forked(work: Work, folder: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(folder)
            code = 0
        finally:
            os._exit(code)
    return child


def outcome(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying(work: Work, call: int) -> Work:
    """The work in a process that kills itself before or after its ``call``-th renaming or linking of a file."""

    def begin(folder: Path) -> None:
        left = [call]

        def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **more: Any) -> Any:
                for moment in ("before", "after"):
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if moment == "before":
                        result = real(*arguments, **more)
                return result

            return wrapped

        os.replace, os.link = deadly(os.replace), deadly(os.link)
        work(folder)

    return begin


def shards(folder: Path) -> int:
    return len(list(folder.rglob("*-*.parquet")))


def main(root: Path, way: str, kills: int) -> dict[str, Any]:
    work, reference = (grow, whole) if way == "growing" else (run, run)
    reference(root / "whole")
    started = time.monotonic()
    assert outcome(forked(work, root / "timed")) == 0
    seconds = time.monotonic() - started
    random.seed(5)
    killed, counts, folder = 0, [], root / way
    for attempt in range(kills):
        if way == "step":
            code = outcome(forked(dying(work, 3 + attempt % 3), folder))
        else:
            others = [forked(work, folder)] if way == "pair" and not attempt else []
            child = forked(work, folder)
            time.sleep(random.uniform(0.0, 0.4) * seconds)
            os.kill(child, signal.SIGKILL)
            code = outcome(child)
            assert [outcome(other) for other in others] == [0] * len(others), "the other process finishes"
        killed += code == -signal.SIGKILL
        counts.append(shards(folder))
    assert outcome(forked(work, folder)) == 0
    return {"killed": killed, "counts": counts, "same": files(folder) == files(root / "whole")}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
