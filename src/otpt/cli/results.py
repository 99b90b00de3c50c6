"""What an evaluation found, on the terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otpt.evaluation import Result
    from otpt.report.tables import ScoreTable
    from otpt.runs import Score


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
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    tell_incomplete(result)


def tell_incomplete(result: Result) -> None:
    """Images that could not be read, and what other commands left undone in the same run."""
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_images.items()))
        print(
            f"otpt: could not read {result.unreadable} of the images, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. All reasons are in the column 'error' of the rows. To predict them once they can "
            "be read, give the same command with --retry-unreadable.",
            file=sys.stderr,
        )
    done, total = result.run.progress()
    if done < total:
        print(
            f"otpt: all that this command asked for is there, but {total - done} of {total} images are missing that "
            "other commands asked of the same run; repeat those to continue.",
            file=sys.stderr,
        )


def print_scores(scores: Sequence[Score]) -> None:
    """Tables of metrics, and below them which averages they lack."""
    from otpt.report.tables import score_tables
    from otpt.runs import left_out

    print_score_tables(score_tables(scores), width=400)
    for sentence in left_out(scores):
        print(sentence)


def print_score_tables(tables: Sequence[ScoreTable], *, width: int) -> None:
    """On the terminal, or as lines of at most ``width`` characters."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=width)
    for table in tables:
        drawn = Table(box=None, pad_edge=False, header_style="bold")
        drawn.add_column(table.title, no_wrap=True)
        if table.several_prompts:
            drawn.add_column("prompt", overflow="fold")
        for column in table.columns:
            drawn.add_column(column, justify="right")
        for row in table.rows:
            prompt = [row.prompt] if table.several_prompts else []
            drawn.add_row(row.method, *prompt, *("–" if number is None else number.text for number in row.numbers))
        console.print(drawn)
        print()
