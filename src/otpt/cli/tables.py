"""Tables of metrics: methods down, metrics or data sets across, averages computed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from otpt.evaluation import Score


SHARES = {
    "accuracy": "accuracy %",
    "top5_accuracy": "top-5 %",
    "ece": "ECE %",
    "adaptive_ece": "adaptive ECE %",
    "mce": "MCE %",
    "sce": "SCE %",
    "overconfidence": "over-confidence %",
}
OTHERS = {"brier": "Brier", "nll": "NLL"}
ACROSS = ("accuracy", "ece", "sce")
"""Metrics that get a table of their own where there are several data sets."""


def score_tables(scores: Sequence[Score]) -> list[Table]:
    """One table of all metrics for a single data set; for several, one a metric with their average."""
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    rows = list(dict.fromkeys((score.prompt, score.method) for score in scores))
    if len(datasets) == 1:
        table = _table(datasets[0], _several_prompts(rows), [*SHARES.values(), *OTHERS.values()])
        for row in rows:
            table.add_row(*_label(row, rows), *(_cell(_by_seed(scores, datasets, row, m), m) for m in SHARES | OTHERS))
        return [table]
    tables = []
    for metric in ACROSS:
        table = _table(SHARES[metric], _several_prompts(rows), [*datasets, "average"])
        for row in rows:
            own = [_cell(_by_seed(scores, [dataset], row, metric), metric) for dataset in datasets]
            table.add_row(*_label(row, rows), *own, _cell(_by_seed(scores, datasets, row, metric), metric))
        tables.append(table)
    return tables


def _by_seed(scores: Sequence[Score], datasets: Sequence[str], row: tuple[str, str], metric: str) -> list[float]:
    """The metric for each seed, averaged over data sets; empty if one of them has no value."""
    own = {(s.dataset, s.seed): s.metrics for s in scores if (s.prompt, s.method) == row and s.dataset in datasets}
    if any(value is None for value in own.values()):
        return []
    seeds = dict.fromkeys(seed for _, seed in own)
    if any((dataset, seed) not in own for dataset in datasets for seed in seeds):
        return []
    return [mean(getattr(own[dataset, seed], metric) for dataset in datasets) for seed in seeds]


def _cell(by_seed: list[float], metric: str) -> str:
    """The mean over seeds, with their deviation where there are several."""
    from otpt.metrics import percent

    if not by_seed:
        return "–"
    values = [mean(by_seed)] + ([stdev(by_seed)] if len(by_seed) > 1 else [])
    return " ± ".join(percent(value) if metric in SHARES else f"{value:.4f}" for value in values)


def _table(title: str, with_prompt: bool, columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    if with_prompt:
        table.add_column("prompt", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _several_prompts(rows: Sequence[tuple[str, str]]) -> bool:
    return len({prompt for prompt, _ in rows}) > 1


def _label(row: tuple[str, str], rows: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    prompt, method = row
    return (method, prompt) if _several_prompts(rows) else (method,)
