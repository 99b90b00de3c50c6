"""All methods side by side: ``python -m benchmarks.field WORK [--photographs FOLDER --model DIR] [--write]``.

Every method of the field on the thirteen emoji sets with ``pocket``, three seeds of the views; and, if given, on
photographs (``FOLDER/caltech101``, ``FOLDER/eurosat``, each with ``classes.txt``) with another model. Stream methods
run over five orders (seeds). A cell is the average over data sets and half of a 95 % interval: 1.96 standard errors of
a bootstrap over the images of each set. The runs grow: a stopped command continues. ``--write`` puts the tables into
``docs/field.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.pages import put_into
from otpt.cli import main as otpt
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.metrics import METRICS
from otpt.metrics.bootstrap import resample_weights
from otpt.runs import Run, read_rows

Floats = npt.NDArray[np.float64]

IMAGES = 270  # of each emoji set: every class of every set at least once
RESAMPLES = 1000
PAGE = Path(__file__).resolve().parent.parent / "docs" / "field.md"
METHODS = (
    "zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+sals", "tpt+penalty",
    "a-tpt", "a-tpt-released", "soc", "d-tpt", "o-tpt+static", "soc+static",
    "tpt+cots", "tpt+e-cots", "o-tpt+cots", "o-tpt+e-cots", "a-tpt+e-cots", "soc+e-cots", "tpt+cor", "tpt+dac",
    "zero-shot+weak-strong", "o-tpt+weak-strong", "soc+static+weak-strong", "se", "use",
    "tpt+agreement", "tpt+cas", "tpt+agreement+e-cots",
    "mean-probability", "confident-half", "mean-logit", "mean-feature", "tpt+mean-probability",
    "zero", "mta", "tps", "tps+e-cots", "sts", "r-tpt", "reliability", "rlcf",
    "templates-7", "templates-7+weak-strong", "fpp", "fpp+tpt", "boost",
)  # fmt: skip
STREAMS = ("tda", "boostadapter", "dmn", "bca", "dpe")
COLUMNS = {
    "accuracy": ("accuracy %", 100.0, 1),
    "ece": ("ECE %", 100.0, 1),
    "debiased_ece": ("debiased ECE %", 100.0, 1),
    "nll": ("NLL", 1.0, 3),
    "aurc": ("AURC %", 100.0, 1),
}
"""By metric: its title, what values are multiplied by, and digits."""


@dataclass(frozen=True)
class Bench:
    """Data sets that are measured with one model."""

    name: str
    backbone: str
    datasets: Sequence[str]
    images: int | None

    def evaluate(self, options: argparse.Namespace, methods: Sequence[str], seeds: Sequence[int]) -> Run:
        """The run of these methods and seeds, once what is missing was evaluated."""
        folder = options.work / self.name
        command = ["evaluate", *self.datasets, "--backbone", self.backbone, "--methods", *methods]
        command += ["--seeds", *map(str, seeds), "--workers", str(options.workers), "--device", "cpu"]
        command += ["--limit", str(self.images)] if self.images else []
        command += ["--cache", str(options.work / "cache"), "--cache-size", "30", "--out", str(folder)]
        if otpt(command):
            raise SystemExit(f"otpt {' '.join(command)} failed")
        return Run(folder)


def benches(options: argparse.Namespace) -> list[Bench]:
    """The emoji sets, and the photographs if they are given."""
    found = [Bench("emoji", "pocket", [f"emoji/{name}" for name in options.sets], options.images)]
    if options.photographs is not None:
        sets = [str(options.photographs / name) for name in ("caltech101", "eurosat")]
        found.append(Bench("photographs", f"local-dir:{options.model}", sets, options.photograph_images))
    return found


def resampled(run: Run, datasets: Sequence[str] | None = None) -> pd.DataFrame:
    """A row per method, a column per metric: the average over sets, then of resampled images, (1 + R,).

    Seeds are averaged per set; every method sees the same resamples of a set's images.
    """
    cells: dict[tuple[str, str], list[Floats]] = {}
    for dataset in run.datasets:
        if datasets is not None and Path(dataset.name).name not in datasets:
            continue
        for column in run.columns(dataset.name):
            by_metric: dict[str, list[Floats]] = {metric: [] for metric in COLUMNS}
            for seed in run.seeds_of(dataset.name):
                rows = read_rows(run, dataset.name, seed, column)
                if rows is None:
                    continue
                draws = [np.ones((1, len(rows.labels))), *resample_weights(len(rows.labels), RESAMPLES, 0)]
                for metric, values in by_metric.items():
                    values.append(np.concatenate([np.atleast_1d(METRICS[metric].compute(rows, w)) for w in draws]))
            for metric, values in by_metric.items():
                if values:
                    cells.setdefault((column[1], metric), []).append(np.mean(values, axis=0))
    frame = pd.Series({key: np.mean(values, axis=0) for key, values in cells.items()}, dtype=object)
    return frame.unstack()


def table(frame: pd.DataFrame) -> str:
    """Markdown, a row per method."""
    titles = ["method", *(title for title, _, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for method, row in frame.iterrows():
        shown = [
            f"{scale * row[metric][0]:.{digits}f} ± {1.96 * scale * np.std(row[metric][1:], ddof=1):.{digits}f}"
            for metric, (_, scale, digits) in COLUMNS.items()
        ]
        lines.append(f"| `{method}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a measurement of methods on these benches."""
    parser.add_argument("work", type=Path, help="a folder for the runs and the feature cache")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", type=Path, help="an open_clip folder, for the photographs")
    parser.add_argument("--sets", nargs="+", default=GROUPS + SHIFTS, metavar="NAME", help="of the emoji bench")
    parser.add_argument("--images", type=int, default=IMAGES, help="of each emoji set (default: %(default)s)")
    parser.add_argument("--photograph-images", type=int, metavar="N", help="of each set of photographs (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="of the views (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")


def main() -> None:
    """Evaluate what is missing, then print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--streams", nargs="*", default=STREAMS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--orders", type=int, default=5, help="of streams (default: %(default)s)")
    options = parser.parse_args()
    for bench in benches(options):
        run = bench.evaluate(options, options.methods, range(options.seeds))
        if options.streams:
            run = bench.evaluate(options, options.streams, range(options.orders))
        text = table(resampled(run).reindex([*options.methods, *options.streams]))
        print(f"\n{bench.name}:\n{text}", flush=True)
        if options.write:
            put_into(PAGE, bench.name, text)


if __name__ == "__main__":
    main()
