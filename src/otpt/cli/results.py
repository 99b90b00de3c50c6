"""What an evaluation found, on the terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from otpt.cli.tables import score_tables

if TYPE_CHECKING:
    from otpt.evaluation import Result, Score


def print_result(result: Result, *, as_json: bool) -> None:
    """The metrics, and what was out of the ordinary."""
    from otpt.evaluation import duration, left_out

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
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_pictures.items()))
        print(
            f"otpt: could not read {result.unreadable} of the pictures, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. All reasons are in the column 'error' of the rows. To judge them once they can be "
            "read, give the same command with --retry-unreadable.",
            file=sys.stderr,
        )


def print_scores(scores: Sequence[Score]) -> None:
    """Tables of metrics, and below them which averages they lack."""
    from rich.console import Console

    from otpt.evaluation import left_out

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=400)
    for table in score_tables(scores):
        console.print(table)
        print()
    for sentence in left_out(scores):
        print(sentence)
