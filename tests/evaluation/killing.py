"""``python killing.py FOLDER``: kill an evaluation, over and over, and go on; prints what it did as JSON.

The model is loaded once; every attempt is a forked process, killed by signal 9

* at each of its system calls that write: before and after every flush, link and renaming of the run's files;
* at random moments, by another process;
* with two processes at work on one folder, one of them killed;
* in the middle of a shard, with a feature cache that then holds some of its features and gradients;
* and while the run grows: by methods, a seed, images, a data set, and a method that carries state.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

torch.set_num_threads(1)  # before the first fork: a forked copy has no other threads

from oracles.runs.evaluation_bench import backbone, dataset, files, settings  # noqa: E402
from oracles.runs.growing_bench import grow, grow_in_pieces, whole  # noqa: E402

from otpt.evaluation import evaluate  # noqa: E402
from otpt.features import FeatureCache  # noqa: E402
from otpt.views import ViewRecipe  # noqa: E402

IMAGES = 8


def run(folder: Path) -> None:
    chosen = settings(methods=["zero-shot", "o-tpt"], recipe=ViewRecipe(n_views=4), shard_size=2, seeds=(0, 1))
    evaluate(dataset(IMAGES), backbone(), chosen, out=folder)


def run_cached(folder: Path, cache: FeatureCache | None) -> None:
    """Fewer images and more views: a gradient is kept where it is smaller than the image's features."""
    chosen = settings(methods=["zero-shot", "o-tpt"], recipe=ViewRecipe(n_views=8), shard_size=3)
    evaluate(dataset(3), backbone(), chosen, out=folder, cache=cache)


def forked(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def outcome(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(call: int, begin: Callable[[], None]) -> Callable[[], None]:
    """A run, in a process that kills itself at its ``call``-th writing system call."""

    def work() -> None:
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

        os.fsync, os.replace, os.link = deadly(os.fsync), deadly(os.replace), deadly(os.link)
        begin()

    return work


def shards(folder: Path) -> int:
    return len(list(folder.rglob("*-*.parquet")))


def step_by_step(folder: Path, begin: Callable[[], None], calls: Iterable[int]) -> tuple[int, list[int]]:
    """How often it was killed, and the shards after each attempt: one takes four calls, so each gets further."""
    killed, counts = 0, []
    for call in calls:
        code = outcome(forked(die_at(call, begin)))
        counts.append(shards(folder))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
    return killed, counts


def at_moments(begin: Callable[[], None], seconds: float, attempts: int) -> int:
    """How often it was killed, at random moments; then it is done undisturbed."""
    killed = 0
    for _ in range(attempts):
        child = forked(begin)
        time.sleep(random.uniform(0.0, 0.4) * seconds)
        os.kill(child, signal.SIGKILL)
        if outcome(child) == 0:
            break
        killed += 1
    assert outcome(forked(begin)) == 0
    return killed


def interrupted(root: Path) -> dict[str, Any]:
    run(root / "warm-up")  # what is set up at the first use need not be set up by every copy
    started = time.monotonic()
    assert outcome(forked(lambda: run(root / "whole"))) == 0
    seconds = time.monotonic() - started
    expected = files(root / "whole")

    # One folder, killed again and again.
    killed, counts = step_by_step(root / "step", lambda: run(root / "step"), (5 + i % 4 for i in range(60)))
    same_step = files(root / "step") == expected

    # Each single call of a whole run, in a new folder each, then one undisturbed run.
    single, same_single = 0, True
    for call in range(1, 48, 5):
        folder = root / f"call-{call}"
        if outcome(forked(die_at(call, lambda folder=folder: run(folder)))) == -signal.SIGKILL:
            single += 1
            assert outcome(forked(lambda folder=folder: run(folder))) == 0
        same_single = same_single and files(folder) == expected

    random.seed(5)
    moments = at_moments(lambda: run(root / "moments"), seconds, 12)
    same_moments = files(root / "moments") == expected

    run_cached(root / "uncached", None)
    half_cached, same_cached = [], True
    for call in (7, 11, 14):
        folder, cache = root / f"cached-{call}", FeatureCache(root / f"cache-{call}")
        begin = partial(run_cached, folder, cache)
        assert outcome(forked(die_at(call, begin))) == -signal.SIGKILL
        half_cached.append((cache.info().entries, cache.info().gradients, shards(folder)))
        assert outcome(forked(begin)) == 0
        same_cached = same_cached and files(folder) == files(root / "uncached")

    # Two at once, one killed on the way; then two that both live.
    pair = root / "pair"
    first, second = forked(lambda: run(pair)), forked(lambda: run(pair))
    time.sleep(seconds / 3)
    os.kill(first, signal.SIGKILL)
    outcome(first)
    survivor = outcome(second)
    both = root / "both"
    codes = [outcome(child) for child in [forked(lambda: run(both)) for _ in range(2)]]
    return {
        "seconds": seconds,
        "killed_step": killed,
        "counts": counts,
        "same_step": same_step,
        "killed_single": single,
        "same_single": same_single,
        "killed_moments": moments,
        "same_moments": same_moments,
        "half_cached": half_cached,
        "same_cached": same_cached,
        "survivor": survivor,
        "same_pair": files(pair) == expected,
        "both": codes,
        "same_both": files(both) == expected,
        "shards": shards(root / "whole"),
    }


def growing(root: Path) -> dict[str, Any]:
    whole(root / "warm-up")
    started = time.monotonic()
    assert outcome(forked(lambda: grow(root / "grown"))) == 0
    seconds = time.monotonic() - started
    assert outcome(forked(lambda: whole(root / "whole"))) == 0
    expected = files(root / "whole")

    killed, counts = step_by_step(root / "step", lambda: grow(root / "step"), (19 + i % 7 for i in range(60)))

    random.seed(7)
    moments = at_moments(lambda: grow(root / "moments"), seconds, 12)

    # Two that add different things to one run, then the same with one of them killed.
    both = root / "both"
    codes = [outcome(child) for child in [forked(partial(grow_in_pieces, both, piece)) for piece in range(2)]]
    pair = root / "pair"
    first, second = (forked(partial(grow_in_pieces, pair, piece)) for piece in range(2))
    time.sleep(seconds / 4)
    os.kill(first, signal.SIGKILL)
    outcome(first)
    survivor = outcome(second)
    assert outcome(forked(partial(grow_in_pieces, pair, 0))) == 0
    pieces = root / "pieces"
    for piece in range(2):
        assert outcome(forked(partial(grow_in_pieces, pieces, piece))) == 0
    return {
        "same_grown": files(root / "grown") == expected,
        "killed_step": killed,
        "counts": counts,
        "same_step": files(root / "step") == expected,
        "killed_moments": moments,
        "same_moments": files(root / "moments") == expected,
        "both": codes,
        "same_both": rows_and_metrics(both) == rows_and_metrics(pieces),
        "survivor": survivor,
        "same_pair": rows_and_metrics(pair) == rows_and_metrics(pieces),
        "shards": shards(root / "whole"),
    }


def rows_and_metrics(folder: Path) -> list[Any]:
    """Files in which nothing tells who came first: of two that begin at once, either may be the first."""
    scores = json.loads((folder / "metrics.json").read_text())["scores"]
    return [files(folder, suffix=".parquet"), sorted(map(repr, scores))]


if __name__ == "__main__":
    print(json.dumps({"interrupted": interrupted, "growing": growing}[sys.argv[2]](Path(sys.argv[1]))))
