"""Calibration, prediction sets and risk with labels on the emoji bench: ``python -m benchmarks.calibration WORK``.

From runs that store all probabilities, on the test images and on 1000 images of each training split, which pocket has
not seen either. Runs after ``--runs`` and ``--training-runs`` are read; else they are made in WORK with ``pocket``, and
continued if they exist. The tables go to the standard output, and with ``--write`` into ``docs/labels.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration_tables import LABELS, Column, coverage_table, few_labels_table, risk_table
from benchmarks.pages import put_into
from otpt.cli import main as otpt
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.runs import Run

METHODS = ("zero-shot", "tpt", "o-tpt", "mean-feature", "reliability")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "labels.md"


def columns(folders: Sequence[Path], methods: Sequence[str]) -> dict[tuple[str, str], Column]:
    """(method, data set) to probabilities and labels of the first seed, of all runs."""
    found: dict[tuple[str, str], Column] = {}
    for run in map(Run, folders):
        for dataset in run.datasets:
            for prompt, method in run.columns(dataset.name):
                rows = run.rows(dataset.name, dataset.seeds[0], (prompt, method))
                if method not in methods or rows is None or (method, dataset.name) in found:
                    continue
                if rows.all_probabilities is None:
                    raise SystemExit(f"The run {run.folder} did not store all probabilities.")
                found[method, dataset.name] = Column(rows.all_probabilities.astype("float64"), rows.labels)
    order = [(method, dataset) for method in methods for dataset in dict.fromkeys(name for _, name in found)]
    return {key: found[key] for key in order if key in found}


def evaluate(options: argparse.Namespace, name: str, more: Sequence[str]) -> Path:
    """The run of that name, made or continued."""
    command = ["evaluate", *options.sets, "--backbone", "pocket", "--methods", *options.methods]
    command += ["--views", str(options.views), "--workers", str(options.workers), "--save-probabilities"]
    command += ["--cache", str(options.work / "cache"), "--out", str(options.work / name), "--device", "cpu", *more]
    if otpt(command):
        raise SystemExit(f"otpt {' '.join(command)} failed")
    return Path(options.work / name)


def main() -> None:
    """Read or make the runs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the runs, if some are made")
    parser.add_argument("--runs", nargs="+", type=Path, help="runs on the test images to read instead")
    parser.add_argument("--training-runs", nargs="+", type=Path, help="runs on training images to read instead")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--sets", nargs="+", default=[f"emoji/{name}" for name in GROUPS + SHIFTS])
    parser.add_argument("--images", type=int, help="of each test set (default: all)")
    parser.add_argument("--labels", type=int, default=max(LABELS), help="of each training split (default: %(default)s)")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--draws", type=int, default=5, help="of labels (default: %(default)s)")
    parser.add_argument("--resamples", type=int, default=1000, help="for the risk (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    limit = ["--limit", str(options.images)] if options.images else []
    tests = options.runs or [evaluate(options, "test", limit)]
    training = options.training_runs or [
        evaluate(options, "training", ["--split", "train", "--limit", str(options.labels)])
    ]
    found, labelled = columns(tests, options.methods), columns(training, options.methods)
    tables = {
        "coverage": coverage_table(found),
        "risk": risk_table(found, resamples=options.resamples),
        "few-labels": few_labels_table(found, labelled, draws=options.draws),
    }
    for name, text in tables.items():
        print(f"\n{text}")
        if options.write:
            put_into(PAGE, name, text)


if __name__ == "__main__":
    main()
