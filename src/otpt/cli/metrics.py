"""``otpt metrics RUN``: every metric of a run, recomputed from its stored rows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli import options as shared
from otpt.cli.headline import print_headline
from otpt.cli.results import print_scores
from otpt.errors import OtptError
from otpt.runs.format import SIDES

if TYPE_CHECKING:
    from otpt.metrics import Interval
    from otpt.report.intervals import RunIntervals
    from otpt.runs import Run, Score


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``metrics``."""
    parser.description = (
        "Recompute the metrics of a run from its stored rows and write them. With "
        "--bins or --side they are only printed. Of several data sets, accuracy, ECE, debiased ECE and SCE are shown; "
        "choose others with --metrics, or see all with --json."
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--bins", type=int, metavar="M", help="bins of the calibration errors, at most 100 (default: as in the run)"
    )
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="only these, by their names in the JSON, such as ece aurc auroc"
    )
    shared.add_intervals_option(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute and print; exit code 3 if the run is not complete."""
    from otpt.report.intervals import RunIntervals
    from otpt.runs import Run, score_run, write_metrics

    if not options.folder.is_dir():
        raise OtptError(f"There is no run folder {str(options.folder)!r}; check the path.")
    found = Run(options.folder)
    scores = score_run(found, bins=options.bins, side=options.side)
    done, total = found.progress()
    missing = total - done
    if not missing and options.bins is None and options.side is None:
        write_metrics(found, scores)
    shown = _shown(options.metrics, found, as_json=options.json)
    intervals = None
    if options.intervals is not None:
        scoring = found.config["scoring"]
        bins = scoring["bins"] if options.bins is None else options.bins
        side = options.side or scoring["side"]
        intervals = RunIntervals(found, shown, bins=bins, side=side, level=options.intervals)
    if options.json:
        print(json.dumps(_data(scores, intervals), indent=2, ensure_ascii=False))
    else:
        print_scores(scores, metrics=options.metrics, intervals=intervals)
        if intervals is None and options.metrics is None:
            print_headline(found, scores, bins=options.bins, side=options.side)
    if missing:
        print(
            f"otpt: the run is not complete: {missing} of {total} images are missing; repeat its command to continue",
            file=sys.stderr,
        )
    return 3 if missing else 0


def _shown(wanted: Sequence[str] | None, run: Run, *, as_json: bool) -> Sequence[str]:
    """Metrics that are shown, which are those that intervals are computed of."""
    from otpt.report.tables.scores import ACROSS, TITLES, check_metrics

    check_metrics(wanted or ())
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
