"""``otpt metrics RUN``: every metric of a run, recomputed from its stored rows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from otpt.cli.results import print_scores
from otpt.errors import OtptError
from otpt.runs.format import SIDES


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``metrics``."""
    parser.description = (
        "Recompute the metrics of a run from its stored rows and write them. With "
        "--bins or --side they are only printed."
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--bins", type=int, metavar="M", help="bins of the calibration errors, at most 100 (default: as in the run)"
    )
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute and print; exit code 3 if the run is not complete."""
    from otpt.runs import Run, averages, left_out, score_run, write_metrics

    if not options.folder.is_dir():
        raise OtptError(f"There is no run folder {str(options.folder)!r}; check the path.")
    found = Run(options.folder)
    scores = score_run(found, bins=options.bins, side=options.side)
    done, total = found.progress()
    missing = total - done
    if not missing and options.bins is None and options.side is None:
        write_metrics(found, scores)
    if options.json:
        shown = {"scores": [s.as_dict() for s in scores], "averages": [a.as_dict() for a in averages(scores)]}
        print(json.dumps({**shown, "left_out": left_out(scores)}, indent=2, ensure_ascii=False))
    else:
        print_scores(scores)
    if missing:
        print(
            f"otpt: the run is not complete: {missing} of {total} images are missing; repeat its command to continue",
            file=sys.stderr,
        )
    return 3 if missing else 0
