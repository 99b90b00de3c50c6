"""``python killing.py FOLDER``: kill an evaluation, over and over, and go on; prints what it did as JSON.

The model is loaded once; every attempt is a forked process, killed by signal 9

* at each of its system calls that write: before and after every flush, link and renaming of the run's files;
* at random moments, by another process;
* with two processes at work on one folder, one of them killed;
* and in the middle of a part, with a feature cache that then holds some of its features and gradients.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402

torch.set_num_threads(1)  # before the first fork: a forked copy has no other threads

from evaluation_bench import backbone, dataset, files, settings  # noqa: E402

from otpt.evaluation import FeatureCache, evaluate  # noqa: E402
from otpt.views import ViewRecipe  # noqa: E402

PICTURES = 8


def run(folder: Path) -> None:
    chosen = settings(methods=["zero-shot", "o-tpt"], recipe=ViewRecipe(n_views=4), part_size=2, seeds=(0, 1))
    evaluate(dataset(PICTURES), backbone(), chosen, out=folder)


def run_cached(folder: Path, cache: FeatureCache | None) -> None:
    """Fewer pictures and more views: a gradient is kept where it is smaller than the picture's features."""
    chosen = settings(methods=["zero-shot", "o-tpt"], recipe=ViewRecipe(n_views=8), part_size=3)
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


def parts(folder: Path) -> int:
    return len(list(folder.rglob("part-*.parquet")))


def main(root: Path) -> dict[str, Any]:
    run(root / "warm-up")  # what is set up at the first use need not be set up by every copy
    started = time.monotonic()
    assert outcome(forked(lambda: run(root / "whole"))) == 0
    seconds = time.monotonic() - started
    expected = files(root / "whole")

    # One folder, killed again and again: a part takes four writing calls, so every attempt gets one part further.
    killed, step, grown = 0, root / "step", []
    for attempt in range(60):
        code = outcome(forked(die_at(5 + attempt % 4, lambda: run(step))))
        grown.append(parts(step))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
    same_step = files(step) == expected

    # Each single call of a whole run, in a new folder each, then one undisturbed run.
    single, same_single = 0, True
    for call in range(1, 48, 5):
        folder = root / f"call-{call}"
        if outcome(forked(die_at(call, lambda folder=folder: run(folder)))) == -signal.SIGKILL:
            single += 1
            assert outcome(forked(lambda folder=folder: run(folder))) == 0
        same_single = same_single and files(folder) == expected

    random.seed(5)
    moments, folder, attempts = 0, root / "moments", 0
    while attempts < 12:
        attempts += 1
        child = forked(lambda: run(folder))
        time.sleep(random.uniform(0.0, 0.4) * seconds)
        os.kill(child, signal.SIGKILL)
        if outcome(child) == 0:
            break
        moments += 1
    assert outcome(forked(lambda: run(folder))) == 0
    same_moments = files(folder) == expected

    run_cached(root / "uncached", None)
    half_cached, same_cached = [], True
    for call in (7, 11, 14):
        folder, cache = root / f"cached-{call}", FeatureCache(root / f"cache-{call}")
        begin = partial(run_cached, folder, cache)
        assert outcome(forked(die_at(call, begin))) == -signal.SIGKILL
        half_cached.append((cache.info().entries, cache.info().gradients, parts(folder)))
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
        "grown": grown,
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
        "parts": parts(root / "whole"),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
