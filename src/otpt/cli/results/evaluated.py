"""What an evaluation found, on the terminal or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from otpt.cli.notes import say
from otpt.cli.results.headline import print_headline
from otpt.cli.results.score_tables import print_score_tables
from otpt.cli.terminal import Column, print_columns

if TYPE_CHECKING:
    from otpt.evaluation import Result
    from otpt.report.tables.scores import Intervals
    from otpt.runs import Score

_WIDTH = 400  # of a file or a pipe, for tables of several data sets


def print_result(result: Result, *, as_json: bool) -> None:
    """The metrics, and what was out of the ordinary."""
    from otpt.evaluation import duration
    from otpt.runs import left_out

    if as_json:
        shown = {
            "run": str(result.run.folder),
            "seconds": result.seconds,
            "unreadable": result.unreadable,
            "scores": [score.as_dict() for score in result.scores],
            "averages": [average.as_dict() for average in result.averages],
            "left_out": left_out(result.scores),
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print_scores(result.scores)
        print_headline(result.run, result.scores)
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    tell_incomplete(result)


def tell_incomplete(result: Result) -> None:
    """Images that could not be read, and what other commands left undone in the same run."""
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_images.items()))
        say(
            f"could not read {result.unreadable} of the images, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. All reasons are in the column 'error' of the rows. To predict them once they can "
            "be read, give the same command with --retry-unreadable."
        )
    done, total = result.run.progress()
    if done < total:
        say(
            f"all that this command asked for is there, but {total - done} of {total} images are missing that "
            "other commands asked of the same run; repeat those to continue."
        )


def print_scores(
    scores: Sequence[Score], *, metrics: Sequence[str] | None = None, intervals: Intervals | None = None
) -> None:
    """Tables of metrics, and below them which averages they lack."""
    from otpt.report.tables import score_tables
    from otpt.runs import left_out

    several = len({score.dataset for score in scores}) > 1
    tables = score_tables(scores, metrics=metrics, intervals=intervals)
    print_score_tables(tables, width=_WIDTH if several else 80)
    _print_sets(scores)
    for sentence in left_out(scores):
        print(sentence)


def _print_sets(scores: Sequence[Score]) -> None:
    """Coverage, set size and risk, where a calibration was asked for them."""
    from otpt.report.tables.sets import COLUMNS, set_rows

    rows = set_rows(scores)
    if rows:
        cells = zip(*rows, strict=True)
        print_columns(
            [Column(title, own, is_name=at < 2) for at, (title, own) in enumerate(zip(COLUMNS, cells, strict=True))],
            width=_WIDTH,
        )
        print()
