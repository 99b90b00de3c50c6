"""A long time in one process: every method, image after image; memory, file handles and threads stay where they are.

Each method goes through the same number of images, all different, as an evaluation with a cache and a run folder does.
Samples are taken along the way. After the first half of them, when everything has been used once, a line is fitted to
the memory: its slope must be small, and so must the change of the numbers of file handles and threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paths import TESTS
from torture.records import Case, Outcome, PartOptions

IMAGES = 6000
_SAMPLES = 40  # of each round
_MEBIBYTES_PER_THOUSAND = 8.0
"""Growth that counts as flat: what the allocator loses to fragments, not what anybody keeps of images."""
_FREE = 24.0
"""MiB in all, which may come late: buffers of libraries, memory of threads."""


@dataclass(frozen=True)
class Sample:
    """What the process holds after so many images."""

    images: int
    mebibytes: float
    handles: int
    threads: int


def sample(images: int) -> Sample:
    """Now."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    pages = resident * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Sample(images, pages, len(os.listdir("/proc/self/fd")), threading.active_count())


def judge(samples: Sequence[Sample]) -> dict[str, tuple[bool, str]]:
    """Memory, handles and threads in the second half: flat or not, and in numbers."""
    late = samples[len(samples) // 2 :]
    images = np.array([each.images for each in late], np.float64)
    memory = np.array([each.mebibytes for each in late], np.float64)
    slope = float(np.polyfit(images, memory, 1)[0]) * 1000
    grown = slope * (images[-1] - images[0]) / 1000
    found = {
        "memory": (
            slope <= _MEBIBYTES_PER_THOUSAND or grown <= _FREE,
            f"{memory[0]:.0f} → {memory[-1]:.0f} MiB, {slope:+.1f} MiB per 1000 predictions",
        )
    }
    for name, own in (("file handles", [s.handles for s in late]), ("threads", [s.threads for s in late])):
        found[name] = (max(own[len(own) // 2 :]) <= max(own[: len(own) // 2 + 1]), f"{own[0]} → {own[-1]}")
    return found


def run(options: PartOptions) -> Iterator[Outcome]:
    """Rounds over all methods until the images or the minutes are used up; then the judgement of all samples."""
    sys.path.insert(0, str(TESTS))
    started, until = time.monotonic(), None if options.minutes is None else time.monotonic() + 60 * options.minutes
    wanted = options.images or IMAGES
    samples: list[Sample] = []
    names = _methods()
    every = max(1, wanted * len(names) // _SAMPLES)

    def count(done: int) -> None:
        if done % every == 0:
            samples.append(sample(done))

    done = _rounds(options.folder, names, wanted, until, count)
    samples.append(sample(done))
    seconds = round(time.monotonic() - started, 1)
    for name, (flat, numbers) in judge(samples).items():
        detail = f"{done} predictions by {len(names)} methods"
        yield Outcome(Case(name, options.seed, detail), f"{numbers} ({detail})", flat, repr(samples), seconds)
        seconds = 0.0  # counted once


def _methods() -> list[str]:
    """Every method that needs no file and no network of its own."""
    from otpt.methods import field_methods, published_methods
    from otpt.methods.axes import ATTRIBUTES, LEARNED

    every = {**published_methods(), **field_methods()}
    own = ("promptsmooth", "baple", "fpt")
    return [name for name, each in every.items() if each.init not in (*LEARNED, ATTRIBUTES) and each.adapt not in own]


def _rounds(folder: Path, names: Sequence[str], images: int, until: float | None, count: Any) -> int:
    """Evaluations, one after another, each of a few images by all methods: what is prepared once is let go often."""
    from oracles.runs.evaluation_bench import backbone, dataset, image, settings  # type: ignore[import-not-found]

    from otpt.evaluation import Job, LocalEngine, run_job
    from otpt.evaluation.progress import ImageDone, ProgressEvent, Silent
    from otpt.features import FeatureCache
    from otpt.views import ViewRecipe

    done = 0

    class Counted(Silent):
        def __call__(self, event: ProgressEvent) -> None:
            nonlocal done
            if isinstance(event, ImageDone):
                done += len(event.results)
                count(done)

    cache = FeatureCache(folder / "cache", max_bytes=2_000_000)
    at_once = 50
    for first in range(0, images, at_once):
        if until is not None and time.monotonic() > until:
            break
        data = dataset(images=[image(first + i) for i in range(min(at_once, images - first))])
        chosen = settings(methods=names, recipe=ViewRecipe(n_views=8), shard_size=16)
        job = Job(lambda _: backbone(), [partial(_same, data)], chosen, folder / f"run-{first}", cache, device="cpu")
        run_job(job, LocalEngine(), Counted())
    return done


def _same(value: Any) -> Any:
    return value
