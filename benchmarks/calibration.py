"""Calibration, prediction sets and risk with labels on the emoji bench: ``python -m benchmarks.calibration WORK``.

From runs that kept all probabilities: those after ``--runs`` (made by ``otpt evaluate --save-probabilities``), or one
that it makes in WORK with ``pocket``. The tables go to the standard output, and with ``--write`` into
``docs/labels.md``. With the runs there, it takes about a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.calibration_tables import Column, coverage_table, few_labels_table, risk_table
from benchmarks.measuring import measure
from benchmarks.pages import put_into
from otpt.data import load_dataset
from otpt.data.emoji.sets import GROUPS, SHIFTS
from otpt.errors import OtptError
from otpt.evaluation import Settings
from otpt.features import FeatureCache
from otpt.runs import Run, read_rows
from otpt.views import ViewRecipe

METHODS = ("zero-shot", "tpt", "o-tpt", "mean-feature", "reliability")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "labels.md"


def columns(runs: Sequence[Run], methods: Sequence[str]) -> dict[tuple[str, str], Column]:
    """(method, data set) → probabilities and labels of the first seed, of all runs."""
    found: dict[tuple[str, str], Column] = {}
    for run in runs:
        for dataset in (str(each["name"]) for each in run.datasets):
            for prompt, method in run.columns(dataset):
                rows = read_rows(run, dataset, run.seeds_of(dataset)[0], (prompt, method))
                if method not in methods or rows is None or (method, dataset) in found:
                    continue
                if rows.all_probabilities is None:
                    raise OtptError(f"The run {str(run.folder)!r} did not keep all probabilities.")
                found[method, dataset] = Column(rows.all_probabilities.astype("float64"), rows.labels)
    order = [(method, dataset) for method in methods for dataset in dict.fromkeys(name for _, name in found)]
    return {key: found[key] for key in order if key in found}


def tables(found: Mapping[tuple[str, str], Column], *, draws: int, resamples: int) -> dict[str, str]:
    """The parts of the page, by name."""
    return {
        "coverage": coverage_table(found),
        "risk": risk_table(found, resamples=resamples),
        "few-labels": few_labels_table(found, draws=draws),
    }


def main() -> None:
    """Take or make the runs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the run, if one is made")
    parser.add_argument("--runs", nargs="+", type=Path, help="runs to take instead")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--sets", nargs="+", default=[f"emoji/{name}" for name in GROUPS + SHIFTS])
    parser.add_argument("--images", type=int, help="of each set (default: all)")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--draws", type=int, default=5, help="of labels (default: %(default)s)")
    parser.add_argument("--resamples", type=int, default=1000, help="for the risk (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    folders = options.runs
    if folders is None:
        settings = Settings(
            options.methods,
            recipe=ViewRecipe(n_views=options.views),
            limit=options.images,
            save_probabilities=True,
        )
        sets = [partial(load_dataset, name) for name in options.sets]
        measure("pocket", sets, settings, options.work / "run", options.workers, FeatureCache(options.work / "cache"))
        folders = [options.work / "run"]
    found = columns([Run(folder) for folder in folders], options.methods)
    for name, text in tables(found, draws=options.draws, resamples=options.resamples).items():
        print(f"\n{text}")
        if options.write:
            put_into(PAGE, name, text)


if __name__ == "__main__":
    main()
