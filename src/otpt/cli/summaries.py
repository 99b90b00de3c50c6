"""Results of runs on the terminal and in files, as several commands show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from otpt.cli.terminal import say, terminal_width
from otpt.escapes import csv_cell
from otpt.files import write_atomically
from otpt.report import Results, evaluation_table
from otpt.report.formats import text_table
from otpt.report.tables import set_table
from otpt.runs import Run

INCOMPLETE = 3
"""Exit code if images could not be read, or a run is not finished."""


def frame_rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of a data frame as plain data; nan is None."""
    plain = frame.astype(object)
    return list(plain.where(plain.notna(), None).to_dict("records"))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV file whose cells no spreadsheet computes."""
    write_atomically(path, frame_csv(frame).encode("utf-8", "replace"))


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a data frame as CSV whose cells no spreadsheet computes."""
    names = frame.select_dtypes(exclude="number").columns
    escaped = frame[names].map(lambda cell: csv_cell(cell) if isinstance(cell, str) else cell)
    return str(frame.assign(**escaped).to_csv(index=False, lineterminator="\n"))


def print_summary(results: Results) -> None:
    """Print one table of the most important metrics, and coverage and size of prediction sets if there are any."""
    print(evaluation_table(results).to_text(terminal_width() or 80))
    sets = set_table(results)
    if not sets.empty:
        print(text_table(sets, 2, terminal_width()), end="\n\n")


def say_in_progress(runs: Sequence[Run]) -> int:
    """Print which runs are incomplete; returns the exit code."""
    code = 0
    for run in runs:
        done, total = run.progress()
        if done < total:
            say(f"the run {str(run.folder)!r} is incomplete: {done} of {total} images are done")
            code = INCOMPLETE
    return code
