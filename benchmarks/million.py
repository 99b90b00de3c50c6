"""A million rows: ``python -m benchmarks.million [--evaluate N] [--rows N]``.

1. **evaluate**: N generated images through a real evaluation by ten methods with a tiny model, rows, locks and all:
   10 N rows. Seconds per image and resident memory along the way, which must stay flat.
2. **metrics**, **table**, **report** of that run, each in a process of its own: seconds and peak memory.
3. ``--rows N``: the same commands on a run of N rows, half of them by each of two methods, that the run's own writer
   wrote without a model.

``--evaluate 100000`` is the million rows; without options it is 2,000 images, in a minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.paths import TESTS

METHODS = ("zero-shot", "o-tpt")
_STATIC = ("o-tpt+static", "c-tpt+static", "a-tpt+static", "soc+static")
EVALUATED = ("zero-shot", *_STATIC, "zero-shot+ts", *(f"{name}+ts" for name in _STATIC))
"""Methods that look at the clean view only: an image of ten rows costs little more than its rows."""
CLASSES = 10
SHARD_SIZE = 1024
COMMANDS = ("metrics", "table", "report")


@dataclass(frozen=True)
class Step:
    """What a step took: ``seconds`` of wall time, ``processor`` seconds, ``peak`` resident memory in MiB."""

    name: str
    seconds: float
    processor: float
    peak: float

    def line(self, rows: int) -> str:
        """For people."""
        return (
            f"{self.name:8} {self.seconds / 60:7.2f} min  {1e6 * self.processor / rows:8.1f} µs processor per row"
            f"  {self.peak:7.0f} MiB"
        )


def evaluate(images: int, run: Path) -> None:
    """Evaluate generated images by a tiny model; a line at every tenth: images done, seconds, MiB resident."""
    import psutil

    from benchmarks.engine import class_names, photograph
    from otpt.data import Dataset
    from otpt.evaluation import Job, LocalEngine, Settings, run_job
    from otpt.evaluation.progress import ImageDone, ProgressEvent, Silent

    sys.path.insert(0, str(TESTS))
    from oracles.models.tiny import tiny_backbone  # type: ignore[import-not-found]

    small = [np.asarray(photograph(i, (48, 40))) for i in range(50)]

    def generated(index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        image = small[index % len(small)].copy()
        image[0, 0] = list(index.to_bytes(3, "big"))  # no two alike
        return image

    labels = [i % CLASSES for i in range(images)]
    data = Dataset("generated", class_names(CLASSES), [str(i) for i in range(images)], labels, generated)
    process, begun = psutil.Process(), time.perf_counter()
    done = [0]

    class Watch(Silent):
        def __call__(self, event: ProgressEvent) -> None:
            done[0] += isinstance(event, ImageDone)
            if isinstance(event, ImageDone) and done[0] % max(images // 10, 1) == 0:
                spent, resident = time.perf_counter() - begun, process.memory_info().rss / 2**20
                shown = f"{done[0]:9} images  {1000 * spent / done[0]:7.2f} ms per image  {resident:7.1f} MiB"
                print(shown, file=sys.stderr, flush=True)

    settings = Settings(methods=EVALUATED, shard_size=SHARD_SIZE)
    backbone = tiny_backbone("vit")
    run_job(Job(lambda _: backbone, [lambda: data], settings, run), LocalEngine(), Watch())


def write_rows(folder: Path, rows: int) -> None:
    """A run of ``rows`` rows, as an evaluation would leave it, but for the computing."""
    from otpt.evaluation import Settings
    from otpt.evaluation.config import run_config
    from otpt.methods.output import Output
    from otpt.runs import Run
    from otpt.runs.rows import ShardRows

    sys.path.insert(0, str(TESTS))
    from oracles.runs.figure_bench import backbone  # type: ignore[import-not-found]
    from oracles.runs.simulated_runs import simulated_dataset  # type: ignore[import-not-found]

    data = simulated_dataset("generated", CLASSES, rows // len(METHODS))
    run = Run.create(folder, run_config(backbone(), [data], Settings(methods=METHODS, shard_size=SHARD_SIZE)))
    for item in run.missing():
        for column in item.columns:
            draw = np.random.default_rng([item.first, METHODS.index(column[1])])
            probabilities = draw.dirichlet(np.full(CLASSES, 0.3), item.images)
            cosines = draw.uniform(0.6, 0.8, item.images)
            own = ShardRows(column, CLASSES, save_probabilities=False)
            for i, index in enumerate(range(item.start, item.stop)):
                label = int(probabilities[i].argmax()) if index % 3 else index % CLASSES
                said = Output(
                    probabilities[i], int(probabilities[i].argmax()), extras={"mean_cosine": float(cosines[i])}
                )
                own.add(index, data.ids[index], label, said)
            run.write(own.shard(item.dataset, item.seed, first=item.first, start=item.start))


def measured(name: str, command: list[str]) -> Step:
    """A command in a process of its own."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return Step(name, time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / scale)


def commands(run: Path) -> dict[str, list[str]]:
    """What is done with a run."""
    otpt = [sys.executable, "-m", "otpt"]
    return {
        "metrics": [*otpt, "metrics", str(run), "--json"],
        "table": [*otpt, "table", str(run)],
        "report": [*otpt, "report", str(run), "-o", str(run.parent / "report.html")],
    }


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluate", type=int, default=2_000, metavar="N", help="images to evaluate; 0 for none")
    parser.add_argument("--rows", type=int, default=0, metavar="N", help="rows to write without a model (default: 0)")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=COMMANDS, help="of the commands")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # in a process of its own, whose memory counts
    options = parser.parse_args()
    if options.into is not None:
        write_rows(options.into, options.rows) if options.rows else evaluate(options.evaluate, options.into)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.evaluate:
            rows, words = options.evaluate * len(EVALUATED), ["--evaluate", str(options.evaluate)]
            print(f"{rows:,} rows: {options.evaluate:,} images, {len(EVALUATED)} methods", flush=True)
            go("evaluate", words, folder / "evaluated", rows, options.only)
        if options.rows:
            print(f"{options.rows:,} rows: {options.rows // len(METHODS):,} images, {len(METHODS)} methods", flush=True)
            go("write", ["--rows", str(options.rows)], folder / "written", options.rows, options.only)


def go(name: str, words: Sequence[str], run: Path, rows: int, only: Sequence[str]) -> None:
    """Make a run by this program with ``words``, then read it by the commands ``only``: a line for each."""
    make = [sys.executable, "-m", "benchmarks.million", *words, "--into", str(run)]
    print(measured(name, make).line(rows), flush=True)
    for each, command in commands(run).items():
        if each in only:
            print(measured(each, command).line(rows), flush=True)


if __name__ == "__main__":
    main()
