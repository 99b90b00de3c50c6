"""Images per second alone and next to a busy process: ``python -m benchmarks.busy [--quick]``.

Two ways to use the cores: threads within operators (plain open_clip, one batch) and one thread per chunk (ours). The
ways take turns, alone and next to a process that keeps one core busy, and the fastest round counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

import otpt
from benchmarks.encoding import TIMM, TOWERS, encoders, random_model
from benchmarks.engine import class_names, photograph

CLASSES = 50


def cases(name: str, views: int) -> Iterator[tuple[str, str, float, Callable[[], object]]]:
    """Of a tower: what is measured, the way, the number of images (of 64 views), and the work."""
    if name != "pocket":
        pixels = torch.randn(views, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        ways = encoders(random_model(name), compiled=False)
        for way in ("plain, one batch", "ours"):
            yield f"{name.removeprefix(TIMM)}, encoding", way, views / 64, partial(ways[way], pixels)
        return
    classifier = otpt.load("pocket", "o-tpt", device="cpu").set_classes(class_names(CLASSES))
    photographs = [photograph(seed) for seed in range(8)]
    yield f"pocket, o-tpt, {CLASSES} classes", "ours", 8, lambda: classifier.predict(photographs)


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.3)
        try:
            yield
        finally:
            busy.kill()


def run(quick: bool = False, *, towers: Sequence[str] = (*TOWERS, "pocket"), rounds: int | None = None) -> None:
    """Print a row per case."""
    views, rounds = 16 if quick else 64, rounds or (2 if quick else 5)
    print(f"{views} views, {torch.get_num_threads()} threads, float32, images per second, best of {rounds}")
    print(f"{'':36}{'way':20}{'alone':>8}{'busy':>8}{'retained':>10}")
    for name in towers:
        measured = list(cases(name, views))
        best = {(way, state): 0.0 for _, way, _, _ in measured for state in ("alone", "busy")}
        for _, _, _, work in measured:
            work()  # warm up: allocations, threads
        for _ in range(rounds):
            for state, neighbours in (("alone", nullcontext), ("busy", neighbour)):
                with neighbours():
                    for _, way, images, work in measured:
                        start = time.perf_counter()
                        work()
                        best[way, state] = max(best[way, state], images / (time.perf_counter() - start))
        for title, way, _, _ in measured:
            alone, busy = best[way, "alone"], best[way, "busy"]
            print(f"{title:36}{way:20}{alone:8.2f}{busy:8.2f}{100 * busy / alone:8.0f} %", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 views, two rounds")
    parser.add_argument(
        "--towers", nargs="+", default=(*TOWERS, "pocket"), metavar="NAME", help="(default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="(default: 5, quick 2)")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(options.quick, towers=options.towers, rounds=options.rounds)


if __name__ == "__main__":
    main()
