"""``otpt metrics RUN…``: every metric of runs, recomputed from their stored rows; also class by class, also as CSV."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import say
from otpt.cli.options.scoring import add_bins_options, add_intervals_option
from otpt.cli.options.spellings import add_methods_option, add_out_option, add_seeds_option
from otpt.cli.results import class_metrics
from otpt.cli.results.csv_rows import csv_bytes
from otpt.cli.results.evaluated import print_scores
from otpt.cli.results.headline import print_headline
from otpt.errors import OtptError
from otpt.files import write_atomically

if TYPE_CHECKING:
    from otpt.metrics import Interval
    from otpt.report.intervals import RunIntervals
    from otpt.runs import Run, Score

CONFUSIONS = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``metrics``."""
    parser.description = (
        "Recompute the metrics of runs from their stored rows and write them. With "
        "--bins or --side they are only printed. Of several data sets, accuracy, ECE, debiased ECE and SCE are shown; "
        "choose others with --metrics, or see all with --json or -o FILE.csv."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    add_bins_options(parser)
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="only these, by their names in the JSON, such as ece aurc auroc"
    )
    add_methods_option(parser, default=None, words="only these methods of the runs")
    add_seeds_option(parser, default=None, words="only these seeds of the views")
    add_intervals_option(parser)
    parser.add_argument("--per-class", action="store_true", help="accuracy of each class, the hardest first")
    parser.add_argument(
        "--confusions",
        nargs="?",
        type=int,
        const=CONFUSIONS,
        metavar="N",
        help=f"the N pairs of classes that are confused most, {CONFUSIONS} by default",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_out_option(parser, metavar="FILE", words="one CSV over all runs, a row per data set, seed, prompt and method")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute and print; exit code 3 if a run is not complete."""
    from otpt.report.results import check_chosen
    from otpt.runs import Run

    _check(options)
    for folder in options.folders:
        if not os.path.isdir(folder):
            raise OtptError(f"There is no run folder {str(folder)!r}; check the path.")
    runs = [Run(folder) for folder in options.folders]
    check_chosen(runs, seeds=options.seeds, methods=options.methods)
    shown = [_of_run(found, options) for found in runs]
    if options.out is not None:
        write_atomically(options.out, csv_bytes([row for each in shown for row in each.pop("rows")]))
        print(f"The numbers of {len(runs)} run{'s' * (len(runs) > 1)} are in {str(options.out)!r}.")
    elif options.json:
        several = [{"run": str(found.folder), **each} for found, each in zip(runs, shown, strict=True)]
        print(json.dumps(shown[0] if len(runs) == 1 else {"runs": several}, indent=2, ensure_ascii=False))
    missing = [(found, done, total) for found in runs for done, total in [found.progress()] if done < total]
    for found, done, total in missing:
        name = "the run" if len(runs) == 1 else f"the run {str(found.folder)!r}"
        say(f"{name} is not complete: {total - done} of {total} images are missing; repeat its command to continue")
    return 3 if missing else 0


def _check(options: argparse.Namespace) -> None:
    if options.out is not None and options.out.suffix.lower() != ".csv":
        raise OtptError(f"The numbers cannot be written to {str(options.out)!r}; expected a name that ends in .csv.")
    if options.out is not None and options.per_class and options.confusions is not None:
        raise OtptError("--per-class and --confusions are two tables; give -o with one of them.")
    if options.confusions is not None and options.confusions < 1:
        raise OtptError(f"--confusions was given {options.confusions}; expected 1 or more.")


def _of_run(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """What is asked of a run: printed, or as data for ``--json``, or ``rows`` of the CSV."""
    own = {"run": str(run.folder), "backbone": run.config["backbone"]["name"]}
    silent = options.json or options.out is not None
    if not silent and len(options.folders) > 1:
        print(f"{own['run']} ({own['backbone']})")
    data: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    if options.per_class:
        data["classes"] = rows = _chosen(class_metrics.per_class_rows(run), options)
        if not silent:
            class_metrics.print_per_class(rows)
    if options.confusions is not None:
        data["confusions"] = rows = _chosen(class_metrics.confusion_rows(run, options.confusions), options)
        if not silent:
            class_metrics.print_confusions(rows)
    if not data:
        data = _scores(run, options, silent=silent)
        rows = data.get("scores", [])
    return {"rows": [{**own, **row} for row in rows]} if options.out is not None else data


def _scores(run: Run, options: argparse.Namespace, *, silent: bool) -> dict[str, Any]:
    from otpt.report.intervals import RunIntervals
    from otpt.runs import score_run, write_metrics

    scores = score_run(run, bins=options.bins, side=options.side)
    done, total = run.progress()
    if done == total and options.bins is None and options.side is None:
        write_metrics(run, scores)
    scores = [each for each in scores if _is_chosen(each.method, each.seed, options)]
    shown = _shown(options.metrics, run, as_json=options.json)
    intervals = None
    if options.intervals is not None:
        scoring = run.config["scoring"]
        bins = scoring["bins"] if options.bins is None else options.bins
        side = options.side or scoring["side"]
        intervals = RunIntervals(run, shown, bins=bins, side=side, level=options.intervals, seeds=options.seeds)
    if not silent:
        print_scores(scores, metrics=options.metrics, intervals=intervals)
        if intervals is None and options.metrics is None:
            print_headline(run, scores, bins=options.bins, side=options.side)
    return _data(scores, intervals) if silent else {}


def _chosen(rows: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    return [row for row in rows if _is_chosen(row["method"], row["seed"], options)]


def _is_chosen(method: str, seed: int, options: argparse.Namespace) -> bool:
    return (not options.methods or method in options.methods) and (not options.seeds or seed in options.seeds)


def _shown(wanted: Sequence[str] | None, run: Run, *, as_json: bool) -> Sequence[str]:
    """Metrics that are shown, which are those that intervals are computed of."""
    from otpt.report.names import check_names
    from otpt.report.tables.scores import ACROSS, TITLES

    check_names("metric", wanted, TITLES)
    return wanted or (ACROSS if len(run.datasets) > 1 and not as_json else list(TITLES))


def _data(scores: Sequence[Score], intervals: RunIntervals | None) -> dict[str, Any]:
    from otpt.runs import averages, left_out

    of_scores, of_averages = [], []
    for score in scores:
        of_scores.append(score.as_dict())
        if intervals is not None and score.metrics is not None:
            found = intervals.of_seed(score.method, score.prompt, score.dataset, score.seed)
            of_scores[-1]["intervals"] = _ranges(found)
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    for average in averages(scores):
        of_averages.append(average.as_dict())
        if intervals is not None:
            of_averages[-1]["intervals"] = _ranges(intervals(average.method, average.prompt, datasets))
    return {"scores": of_scores, "averages": of_averages, "left_out": left_out(scores)}


def _ranges(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """[low, high] by metric; null where no resample has a value."""
    return {name: [each.low, each.high] if each.resamples else None for name, each in intervals.items()}
