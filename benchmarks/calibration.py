"""Calibration, prediction sets and risk with labels on the emoji bench: ``python -m benchmarks.calibration WORK``.

From runs that store all probabilities, on the test images and on 1000 images of each training split, which pocket has
not seen either. Runs after ``--runs`` and ``--training-runs`` are read; else they are made in WORK with ``pocket``, and
continued if they exist. Printed are the coverage of sets, the risk bound, and what few labels give.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import betabinom

from otpt.calibration.conformal import SETS, conformal_quantile, conformal_scores, find_threshold
from otpt.calibration.maps import as_stored, choose_map
from otpt.cli import main as otpt
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.metrics import confidence_and_correct, debiased_ece, negative_log_likelihood, percent
from otpt.runs import Run

METHODS = ("zero-shot", "tpt", "o-tpt", "mean-feature", "reliability")
COVERAGES = (0.8, 0.9, 0.95)
RISKS = (0.05, 0.1, 0.2)
GUARANTEE = 0.95
LABELS = (50, 200, 1000)
RISK_LABELS = 500


@dataclass(frozen=True)
class Column:
    """Probabilities (N, C) and labels (N,) of a method on a data set."""

    probabilities: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


Columns: TypeAlias = Mapping[tuple[str, str], Column]
"""(method, data set) → column."""


def coverage_table(columns: Columns) -> str:
    """Half of each set's images calibrates, the other half is measured: coverage over all sets and mean set size.

    The last columns count the sets whose coverage is below the 0.5 % or above the 99.5 % quantile of what it should be:
    with n labels and m images, the hits are beta-binomial(m, k, n + 1 − k), k = ⌈(n + 1)·coverage⌉. Above: before the
    predicted class is added to every set.
    """
    heads = [f"{percent(each, 0)} %: coverage %, set size" for each in COVERAGES]
    lines = [f"| method | sets | {' | '.join(heads)} | below | above |", "|---" * (4 + len(COVERAGES)) + "|"]
    for method in dict.fromkeys(name for name, _ in columns):
        for kind in SETS:
            cells, below, above, tested = [], 0, 0, 0
            for coverage in COVERAGES:
                hits, images, sizes = 0, 0, 0.0
                for (name, _), column in columns.items():
                    if name != method:
                        continue
                    found = split_coverage(column, kind, coverage)
                    hits, images, sizes = hits + found.hits, images + found.images, sizes + found.sizes
                    below, above, tested = below + found.below, above + found.above, tested + 1
                cells.append(f"{percent(hits / images)}, {sizes / images:.2f}")
            counts = f"{below} of {tested} | {above} of {tested}"
            lines.append(f"| `{method}` | {kind.upper()} | {' | '.join(cells)} | {counts} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Measured:
    """Sets on the images that did not calibrate."""

    hits: int
    images: int
    sizes: float
    below: bool
    above: bool


def split_coverage(column: Column, kind: str, coverage: float) -> Measured:
    """Calibrated on one half of the images, measured on the other."""
    order = np.random.default_rng(0).permutation(len(column.labels))
    half = len(order) // 2
    p = as_stored(column.probabilities)
    scores = conformal_scores(kind, p)
    own, test = order[:half], order[half:]
    q = conformal_quantile(scores[own, column.labels[own]], coverage)
    inside = scores[test] <= q
    without = int(inside[np.arange(len(test)), column.labels[test]].sum())
    inside[np.arange(len(test)), p[test].argmax(axis=1)] = True
    hits = int(inside[np.arange(len(test)), column.labels[test]].sum())
    rank = math.ceil((half + 1) * coverage - 1e-9)
    below = beta_binomial_below(hits, len(test), rank, half) < 0.005
    above = rank <= half and 1 - beta_binomial_below(without - 1, len(test), rank, half) < 0.005
    return Measured(hits, len(test), float(inside.sum()), below, above)


def beta_binomial_below(hits: int, images: int, rank: int, labels: int) -> float:
    """P[X ≤ hits] of X ~ beta-binomial(m, k, n + 1 − k); 1 where the quantile is infinite."""
    return 1.0 if rank > labels else float(betabinom.cdf(hits, images, rank, labels + 1 - rank))


def risk_table(columns: Columns, *, resamples: int) -> str:
    """The images of all sets as the population: thresholds from 500 labels drawn from it, the risk on all of it."""
    lines = [
        "| method | risk | above the risk | no threshold | answered % | risk % of these |",
        "|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(name for name, _ in columns):
        own = [column for (name, _), column in columns.items() if name == method]
        pairs = [confidence_and_correct(as_stored(each.probabilities).astype(np.float32), each.labels) for each in own]
        confidence, correct = (np.concatenate(each) for each in zip(*pairs, strict=True))
        for risk in RISKS:
            found = resampled_risk(confidence, correct, risk, resamples)
            held = [each for each in found if each is not None]
            answered = percent(float(np.mean([each[0] for each in held]))) if held else "–"
            wrong = percent(float(np.mean([each[1] for each in held]))) if held else "–"
            broken = sum(each[1] > risk for each in held)
            lines.append(
                f"| `{method}` | {risk:g} | {percent(broken / resamples, 1)} % | "
                f"{percent(1 - len(held) / resamples, 1)} % | {answered} | {wrong} |"
            )
    return "\n".join(lines)


def resampled_risk(confidence: Any, correct: Any, risk: float, resamples: int) -> list[tuple[float, float] | None]:
    """(fraction answered, fraction wrong of these) of the population, for each draw of labels; None: no threshold."""
    draw = np.random.default_rng(0)
    found: list[tuple[float, float] | None] = []
    for _ in range(resamples):
        chosen = draw.integers(0, len(correct), RISK_LABELS)
        threshold = find_threshold(confidence[chosen], correct[chosen], risk=risk, guarantee=GUARANTEE)
        answered = confidence > (np.inf if threshold is None else threshold.threshold)
        wrong = float((~correct[answered]).mean()) if answered.any() else 0.0
        found.append(None if threshold is None else (float(answered.mean()), wrong))
    return found


def few_labels_table(columns: Columns, training: Columns, *, draws: int) -> str:
    """NLL and debiased ECE on the test images, before and after a calibration with labels of the training images."""
    heads = ["before", *map(str, LABELS)]
    title = " | ".join([*(f"NLL {each}" for each in heads), *(f"debiased ECE % {each}" for each in heads)])
    lines = []
    for method in dict.fromkeys(name for name, _ in columns):
        lines += [f"| `{method}` | {title} |", "|---" * (1 + 2 * len(heads)) + "|"]
        own = {dataset: column for (name, dataset), column in columns.items() if name == method}
        found = {
            dataset: few_labels(column, training[method, dataset], draws)
            for dataset, column in own.items()
            if (method, dataset) in training
        }
        lines += [f"| {dataset.removeprefix('emoji/')} | {_cells(values)} |" for dataset, values in found.items()]
        if found:
            lines.append(f"| average | {_cells(np.mean(list(found.values()), axis=0))} |")
        lines.append("")
    return "\n".join(lines)


def few_labels(column: Column, training: Column, draws: int) -> npt.NDArray[np.float64]:
    """(2, 1 + 3): NLL and debiased ECE before, and after each number of labels, mean over draws; nan: not so many."""
    found = np.full((2, 1 + len(LABELS)), np.nan)
    found[:, 0] = _scores(as_stored(column.probabilities), column.labels)
    n = len(training.labels)
    for at, labels in enumerate(LABELS, start=1):
        if labels > n:
            continue
        values = []
        for seed in range(draws if labels < n else 1):  # all of them can be drawn in one way only
            own = np.random.default_rng(seed).permutation(n)[:labels]
            fitted = choose_map(training.probabilities[own], training.labels[own]).map
            values.append(_scores(fitted(column.probabilities), column.labels))
        found[:, at] = np.mean(values, axis=0)
    return found


def _scores(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> tuple[float, float]:
    confidence, correct = confidence_and_correct(probabilities, labels)
    return negative_log_likelihood(probabilities, labels), debiased_ece(np.minimum(confidence, 1.0), correct)


def _cells(values: npt.NDArray[np.float64]) -> str:
    nll = ["–" if np.isnan(each) else f"{each:.3f}" for each in values[0]]
    return " | ".join([*nll, *("–" if np.isnan(each) else percent(each) for each in values[1])])


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
    options = parser.parse_args()
    limit = ["--limit", str(options.images)] if options.images else []
    tests = options.runs or [evaluate(options, "test", limit)]
    training = options.training_runs or [
        evaluate(options, "training", ["--split", "train", "--limit", str(options.labels)])
    ]
    found, labelled = columns(tests, options.methods), columns(training, options.methods)
    print(coverage_table(found), end="\n\n")
    print(risk_table(found, resamples=options.resamples), end="\n\n")
    print(few_labels_table(found, labelled, draws=options.draws))


if __name__ == "__main__":
    main()
