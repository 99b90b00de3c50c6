"""Calibration, prediction sets and risk with labels on the emoji bench: ``python -m benchmarks.calibration WORK``.

From runs that kept all probabilities (``--save-probabilities``): on the test images, and on 1000 images of each
training split, which pocket has not seen either. Those after ``--runs`` and ``--training-runs`` are taken; else they
are made in WORK with ``pocket``, and continued if they are there. The tables go to the standard output, and with
``--write`` into ``docs/labels.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.calibration_tables import LABELS, Column, Columns, coverage_table, few_labels_table, risk_table
from benchmarks.measuring import measure
from benchmarks.pages import put_into
from otpt.data import Dataset, load_dataset
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSettings
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


def training_images(name: str, count: int) -> Dataset:
    """So many images of a training split, drawn at random."""
    whole = load_dataset(name, split="train")
    chosen = sorted(np.random.default_rng(0).permutation(len(whole))[:count].tolist())
    return Dataset(
        name,
        whole.class_names,
        [whole.ids[i] for i in chosen],
        [whole.labels[i] for i in chosen],
        lambda i: whole.source(chosen[i]),
        family=whole.family,
        augmix=whole.augmix,
        prompt=whole.prompt,
    )


def tables(found: Columns, training: Columns, *, draws: int, resamples: int) -> dict[str, str]:
    """The parts of the page, by name."""
    return {
        "coverage": coverage_table(found),
        "risk": risk_table(found, resamples=resamples),
        "few-labels": few_labels_table(found, training, draws=draws),
    }


def main() -> None:
    """Take or make the runs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the runs, if some are made")
    parser.add_argument("--runs", nargs="+", type=Path, help="runs on the test images to take instead")
    parser.add_argument("--training-runs", nargs="+", type=Path, help="runs on training images to take instead")
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
    settings = EvaluationSettings(options.methods, views=ViewRecipe(n_views=options.views), save_probabilities=True)
    tests = [partial(load_dataset, name) for name in options.sets]
    labelled = [partial(training_images, name, options.labels) for name in options.sets]
    cache = FeatureCache(options.work / "cache")
    make = partial(measure, "pocket", workers=options.workers, cache=cache)
    folders = options.runs or [options.work / "test"]
    if options.runs is None:
        make(tests, replace(settings, limit=options.images), folders[0])
    training = options.training_runs or [options.work / "training"]
    if options.training_runs is None:
        make(labelled, settings, training[0])
    found, held = (columns([Run(folder) for folder in own], options.methods) for own in (folders, training))
    for name, text in tables(found, held, draws=options.draws, resamples=options.resamples).items():
        print(f"\n{text}")
        if options.write:
            put_into(PAGE, name, text)


if __name__ == "__main__":
    main()
