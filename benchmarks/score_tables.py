"""Markdown tables of scores on the emoji bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from otpt.report.tables import metric_table
from otpt.runs import Score

METRICS = ("accuracy", "ece", "overconfidence")


def score_table(scores: Sequence[Score], methods: Sequence[str], sets: Sequence[str]) -> str:
    """A table per metric, in percent: a row per method, a column per set; the average with its deviation over seeds."""
    lines = []
    scores = [replace(score, prompt="") for score in scores]  # each set may have its own
    for metric in METRICS:
        table = metric_table(scores, metric, datasets=sets, methods=methods)
        names = [name.removeprefix("emoji/") for name in table.columns]
        lines += [f"| {table.title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for row in table.rows:
            *cells, average = ["–" if number is None else number for number in row.numbers]
            shown = [cell if isinstance(cell, str) else cell.mean for cell in cells]
            last = average if isinstance(average, str) else average.text
            lines.append(f"| `{row.method}` | {' | '.join(shown)} | {last} |")
        lines.append("")
    return "\n".join(lines)
