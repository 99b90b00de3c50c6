"""Markdown tables of scores on the emoji bench."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from otpt.evaluation import Score
from otpt.metrics import percent

METRICS = {"accuracy": "accuracy %", "ece": "ECE %", "overconfidence": "over-confidence %"}


def score_table(scores: Sequence[Score], methods: Sequence[str], sets: Sequence[str], seeds: Sequence[int]) -> str:
    """A table a metric, in percent: a row a method, a column a set; the average with its deviation over the seeds."""
    lines = []
    for metric, title in METRICS.items():
        names = [name.removeprefix("emoji/") for name in sets]
        lines += [f"| {title} | {' | '.join(names)} | average |", "|---" * (len(names) + 2) + "|"]
        for method in methods:
            own = {(s.dataset, s.seed): getattr(s.metrics, metric) for s in scores if s.method == method}
            cells = [percent(mean(own[name, seed] for seed in seeds)) for name in sets]
            by_seed = [mean(own[name, seed] for name in sets) for seed in seeds]
            deviation = f" ± {percent(stdev(by_seed))}" if len(by_seed) > 1 else ""
            lines.append(f"| `{method}` | {' | '.join(cells)} | {percent(mean(by_seed))}{deviation} |")
        lines.append("")
    return "\n".join(lines)
