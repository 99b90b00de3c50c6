"""All methods side by side: ``python -m benchmarks.field WORK [--photographs FOLDER --model NAME] [--write]``.

Every method of the field on the thirteen emoji sets with ``pocket``, three seeds of the views; and, if given, on
photographs (``FOLDER/caltech101``, ``FOLDER/eurosat``, each with ``classes.txt``) with another model. Stream methods
run over five orders (seeds). ``--features`` adds what :mod:`benchmarks.real_clip` measured. A value is the average over
data sets, with half of a 95 % interval: 1.96 standard errors of a bootstrap over the images of each set. The runs grow:
a stopped command continues. ``--write`` updates ``docs/results/field.csv`` (rows that were not measured again stay) and
makes the tables of ``docs/results.md`` from it and from published numbers; ``--no-runs`` does that alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.pages import put_into
from otpt.cli import main as otpt
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.methods import get_method
from otpt.metrics import METRICS
from otpt.metrics.bootstrap import resample_weights
from otpt.registry import STREAM
from otpt.runs import Run
from otpt_papers.papers import published

Floats = npt.NDArray[np.float64]

IMAGES = 270  # of each emoji set: every class of every set at least once
RESAMPLES = 1000
DOCS = Path(__file__).resolve().parent.parent / "docs"
CSV = DOCS / "results" / "field.csv"
KEYS = ["bench", "method", "metric"]
TTABC = {
    "zero-shot": (66.72, 57.20), "tpt": (68.85, 59.91), "tps": (70.29, 63.01), "dpe": (70.20, 62.25),
    "zero": (68.94, 60.93), "mta": (69.02, 60.77), "dota": (70.70, 62.53), "ecalp": (70.18, 60.21),
    "onzeta": (71.12, 59.86),
}  # fmt: skip
"""Published accuracy on ImageNet and mean over four shifts, ViT-B/16 (arXiv 2606.14299)."""
PUBLISHED = {"otpt": "O-TPT", "cots": "CoTS", "tta-vlm": "TTA-VLM"}
"""Papers by their key, and their title in the columns; C-TPT's numbers are those that O-TPT prints."""
METHODS = (
    "zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+sals", "tpt+penalty",
    "a-tpt", "a-tpt-released", "soc", "d-tpt", "o-tpt+static", "soc+static",
    "tpt+cots", "tpt+e-cots", "o-tpt+cots", "o-tpt+e-cots", "a-tpt+e-cots", "soc+e-cots", "tpt+cor", "tpt+dac",
    "zero-shot+weak-strong", "o-tpt+weak-strong", "soc+static+weak-strong", "se", "use",
    "tpt+agreement", "tpt+cas", "tpt+agreement+e-cots",
    "mean-probability", "confident-half", "mean-logit", "mean-feature", "tpt+mean-probability",
    "zero", "mta", "tps", "tps+e-cots", "sts", "r-tpt", "reliability", "rlcf",
    "templates-7", "templates-7+weak-strong", "fpp", "fpp+tpt", "boost", "tsallis", "gs-bias",
)  # fmt: skip
STREAMS = (
    "tda", "boostadapter", "dmn", "bca", "dpe", "dota", "oga", "oga-released", "adapt-gda", "adapt-gda-released",
    "onzeta", "onlab", "ecalp", "pta", "pta-released", "lsa", "label-prior", "adte", "adte-released",
    "dyna-prompt", "dyna-prompt-released", "his-tpt",
)  # fmt: skip
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
    found = []
    if options.sets:
        found.append(Bench("emoji", "pocket", [f"emoji/{name}" for name in options.sets], options.images))
    if options.photographs is not None:
        sets = [str(options.photographs / name) for name in ("caltech101", "eurosat")]
        found.append(Bench("photographs", options.model, sets, options.photograph_images))
    return found


def resampled(run: Run, datasets: Sequence[str] | None = None) -> pd.DataFrame:
    """A row per method, a column per metric: the average over sets, then of resampled images, (1 + R,).

    Seeds are averaged per set; every method sees the same resamples of a set's images.
    """
    cells: dict[tuple[str, str], list[Floats]] = {}
    for number, dataset in enumerate(run.datasets):
        if datasets is not None and Path(dataset.name).name not in datasets:
            continue
        for column in run.columns(dataset.name):
            by_metric: dict[str, list[Floats]] = {metric: [] for metric in COLUMNS}
            for seed in dataset.seeds:
                rows = run.rows(dataset.name, seed, column)
                if rows is None:
                    continue
                draws = [np.ones((1, len(rows.labels))), *resample_weights(len(rows.labels), RESAMPLES, (0, number))]
                for metric, values in by_metric.items():
                    values.append(np.concatenate([np.atleast_1d(METRICS[metric].compute(rows, w)) for w in draws]))
            for metric, values in by_metric.items():
                if values:
                    cells.setdefault((column[1], metric), []).append(np.mean(values, axis=0))
    frame = pd.Series({key: np.mean(values, axis=0) for key, values in cells.items()}, dtype=object)
    return frame.unstack()


def long_rows(bench: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A row per method and metric: value and half of a 95 % interval, in the units of the page."""
    rows = []
    for method, row in frame.iterrows():
        for metric, (_, scale, digits) in COLUMNS.items():
            if isinstance(row[metric], np.ndarray):
                half = 1.96 * scale * float(np.std(row[metric][1:], ddof=1))
                rows.append((bench, method, metric, round(scale * row[metric][0], digits), round(half, digits)))
    return pd.DataFrame(rows, columns=[*KEYS, "value", "half_interval_95"])


def feature_rows(file: Path) -> pd.DataFrame:
    """What :mod:`benchmarks.real_clip` measured: means over orders, and half of their range."""
    measured = pd.DataFrame([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])
    rows = []
    for (name, method), own in measured.groupby(["set", "method"], sort=False):
        for metric, (_, scale, digits) in COLUMNS.items():
            half = (own[metric].max() - own[metric].min()) / 2 if len(own) > 1 else np.nan
            rows.append((name, method, metric, round(scale * own[metric].mean(), digits), round(scale * half, digits)))
    return pd.DataFrame(rows, columns=[*KEYS, "value", "half_interval_95"])


def published_rows() -> pd.DataFrame:
    """Averages over data sets that papers print for ViT-B/16 (TTA-VLM: RN50), and TTABC's."""
    found = published()
    found = found[(found.dataset == "average") & found.paper.isin(PUBLISHED) & found.metric.isin(["accuracy", "ece"])]
    found = found[(found.backbone == "ViT-B/16") | (found.paper == "tta-vlm")]
    found = found.drop_duplicates(["paper", "method", "metric"])
    rows = [(f"published: {row.paper}", row.method, row.metric, row.value, "") for row in found.itertuples()]
    for method, (imagenet, shifts) in TTABC.items():
        rows.append(("published: ttabc, ImageNet", method, "accuracy", imagenet, ""))
        rows.append(("published: ttabc, shifts", method, "accuracy", shifts, ""))
    return pd.DataFrame(rows, columns=[*KEYS, "value", "half_interval_95"])


def needs(name: str) -> str:
    """What a method needs besides features of the clean view and texts; the page explains the letters."""
    method = get_method(name)
    letters = {
        "V": method.needs_views("fine-grained"),
        "T": method.needs_context,
        "S": method.scope == STREAM,
        "A": method.sees_all_first,
    }
    return " ".join(letter for letter, needed in letters.items() if needed)


def page_tables(rows: pd.DataFrame) -> tuple[str, str]:
    """Markdown of what was measured, smallest NLL first, and of published numbers; a row per method."""
    known = rows.drop_duplicates(KEYS, keep="last").set_index(KEYS)

    def cell(bench: str, method: str, metric: str) -> str:
        value, half = (known[name].get((bench, method, metric), np.nan) for name in ("value", "half_interval_95"))
        if pd.isna(value):
            return ""
        digits = COLUMNS[metric][2] if metric in COLUMNS else 1
        interval = "" if pd.isna(half) or half == "" else f" ± {float(half):.{digits}f}"
        return f"{float(value):.{digits}f}{interval}"

    measured = {f"{COLUMNS[metric][0]}": ("emoji", metric) for metric in ("accuracy", "debiased_ece", "nll", "aurc")}
    measured |= {"photographs: NLL": ("photographs", "nll"), "ms": ("emoji", "ms_per_image")}
    papers = {
        f"{title} {COLUMNS[metric][0]}": (f"published: {paper}", metric)
        for paper, title in PUBLISHED.items()
        for metric in ("accuracy", "ece")
    }
    papers |= {f"TTABC {where} %": (f"published: ttabc, {where}", "accuracy") for where in ("ImageNet", "shifts")}
    ordered = rows[(rows.bench == "emoji") & (rows.metric == "nll")].sort_values("value", kind="stable").method
    found = []
    for columns in (measured, papers):
        frame = pd.DataFrame(
            {title: [cell(key[0], method, key[1]) for method in ordered] for title, key in columns.items()}
        )
        frame.insert(0, "method", [f"`{method}`" for method in ordered])
        if columns is measured:
            frame["needs"] = [needs(method) for method in ordered]
        else:
            frame = frame[(frame.drop(columns="method") != "").any(axis=1)]
        align = ["left" if title in ("method", "needs") else "right" for title in frame.columns]
        found.append(frame.to_markdown(index=False, disable_numparse=True, tablefmt="pipe", colalign=align))
    return found[0], found[1]


def update(measured: Sequence[pd.DataFrame]) -> None:
    """Replace the rows that were measured again in the CSV, and make the page's tables from it."""
    known = pd.read_csv(CSV)
    known = known[~known.bench.str.startswith("published")]
    rows = pd.concat([known, *measured, published_rows()]).drop_duplicates(KEYS, keep="last")
    rows.to_csv(CSV, index=False)
    for name, table in zip(("field", "published"), page_tables(rows), strict=True):
        put_into(DOCS / "results.md", name, table)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a measurement of methods on these benches."""
    parser.add_argument("work", type=Path, help="a folder for the runs and the feature cache")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", default="pocket-photo", help="for the photographs (default: %(default)s)")
    parser.add_argument(
        "--sets", nargs="*", default=GROUPS + SHIFTS, metavar="NAME", help="of the emoji bench; none: skip it"
    )
    parser.add_argument("--images", type=int, default=IMAGES, help="of each emoji set (default: %(default)s)")
    parser.add_argument("--photograph-images", type=int, metavar="N", help="of each set of photographs (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="of the views (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")


def main() -> None:
    """Evaluate what is missing, then print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--methods", nargs="*", default=METHODS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--streams", nargs="*", default=STREAMS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--orders", type=int, default=5, help="of streams (default: %(default)s)")
    parser.add_argument("--features", type=Path, metavar="FILE", help="streams.jsonl of benchmarks.real_clip")
    parser.add_argument("--no-runs", action="store_true", help="measure nothing")
    options = parser.parse_args()
    measured = [] if options.features is None else [feature_rows(options.features)]
    for bench in [] if options.no_runs else benches(options):
        if options.methods:
            run = bench.evaluate(options, options.methods, range(options.seeds))
        if options.streams:
            run = bench.evaluate(options, options.streams, range(options.orders))
        measured.append(long_rows(bench.name, resampled(run)))
        print(measured[-1].to_string(), flush=True)
    if options.write:
        update(measured)


if __name__ == "__main__":
    main()
