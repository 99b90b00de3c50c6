"""Every metric from the stored shards alone: ``otpt metrics RUN`` computes, byte for byte, what the run wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from otpt.files import as_json, write_atomically
from otpt.metrics import METRICS as TABLE
from otpt.metrics import Metrics, SetMetrics, evaluate_rows, set_metrics
from otpt.runs.format import check_bins
from otpt.runs.reading import Rows, read_rows
from otpt.runs.run import METRICS, Column, Run

AVERAGED = tuple(each.name for each in fields(Metrics) if each.name in TABLE and TABLE[each.name].best)
"""Metrics that are averaged over data sets, with deviations over seeds."""


@dataclass(frozen=True)
class Score:
    """The metrics of one data set, seed, prompt and method.

    Attributes:
        metrics: None if not a single image could be read.
        unreadable: images that could not be read.
        flagged: images with flags.
        mean_cosine: mean over the images.
        sets: prediction sets and abstention, where a calibration file was asked for them.
    """

    dataset: str
    seed: int
    prompt: str
    method: str
    metrics: Metrics | None
    unreadable: int
    flagged: int
    mean_cosine: float | None
    sets: SetMetrics | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in ``metrics.json``."""
        where = {"dataset": self.dataset, "seed": self.seed, "prompt": self.prompt, "method": self.method}
        counts = {"unreadable": self.unreadable, "flagged": self.flagged, "mean_cosine": self.mean_cosine}
        sets = {} if self.sets is None else {"sets": self.sets.as_dict()}
        return {**where, **counts, **(self.metrics.as_dict() if self.metrics is not None else {"images": 0}), **sets}


@dataclass(frozen=True)
class Average:
    """A method (and prompt) over all data sets: the mean of each metric, seeds first, then data sets.

    Attributes:
        metrics: by name; without those that are not defined on one of them.
        deviation: sample standard deviation of the average over seeds; None with one seed.
    """

    prompt: str
    method: str
    metrics: dict[str, float]
    deviation: dict[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in ``metrics.json``."""
        metrics = {name: self.metrics.get(name) for name in AVERAGED}
        return {"prompt": self.prompt, "method": self.method, **metrics, "deviation": self.deviation}


def score_run(run: Run, *, bins: int | None = None, side: str | None = None) -> list[Score]:
    """All metrics of the shards that are there; ``bins`` and ``side`` in place of the run's own."""
    scoring = run.config["scoring"]
    bins, side = scoring["bins"] if bins is None else bins, side or scoring["side"]
    check_bins(bins, side)
    return [_score(run, dataset, seed, column, bins, side) for dataset, seed, column in run.everything()]


def write_metrics(run: Run, scores: Sequence[Score]) -> None:
    """``metrics.json`` of each data set and seed, and of the run."""
    for name in (str(dataset["name"]) for dataset in run.datasets):
        for seed in run.seeds_of(name):
            own = [score for score in scores if (score.dataset, score.seed) == (name, seed)]
            _write(run.metrics_path(name, seed), {"scores": [score.as_dict() for score in own]})
    whole = {"scores": [s.as_dict() for s in scores], "averages": [a.as_dict() for a in averages(scores)]}
    _write(run.folder / METRICS, whole)


def _write(path: Path, value: Any) -> None:
    data = as_json(value)
    with suppress(OSError):  # not there, or not readable: it is written anew
        if path.read_bytes() == data:
            return
    write_atomically(path, data)


def averages(scores: Iterable[Score]) -> list[Average]:
    """Of each (prompt, method) that has metrics of every data set, with the same seeds; see :func:`left_out`."""
    scores = list(scores)
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    found = []
    for (prompt, method), values in _by_column(scores).items():
        seeds = list(dict.fromkeys(seed for _, seed in values))
        if len(values) != len(datasets) * len(seeds) or None in values.values():
            continue
        defined = [name for name in AVERAGED if all(getattr(own, name) is not None for own in values.values())]
        by_seed = {
            name: [mean(getattr(values[dataset, seed], name) for dataset in datasets) for seed in seeds]
            for name in defined
        }
        deviation = {name: stdev(each) for name, each in by_seed.items()} if len(seeds) > 1 else None
        found.append(Average(prompt, method, {name: mean(each) for name, each in by_seed.items()}, deviation))
    return found


def left_out(scores: Sequence[Score]) -> list[str]:
    """A sentence for each prompt whose methods have no average over the data sets, and why."""
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    methods: dict[tuple[str, str], list[str]] = {}
    for (prompt, method), values in _by_column(scores).items() if len(datasets) > 1 else ():
        own = list(dict.fromkeys(name for name, _ in values))
        seeds = sorted({seed for _, seed in values})
        others = [name for name in datasets if name not in own]
        fewer = [f"{name} with {seed}" for name in own for seed in seeds if (name, seed) not in values]
        empty = list(dict.fromkeys(name for (name, _), metrics in values.items() if metrics is None))
        reasons = [f"not evaluated with it: {', '.join(others)}"] if others else []
        reasons += [f"not evaluated with all seeds: no {', '.join(fewer)}"] if fewer else []
        reasons += [f"without an image that was read: {', '.join(empty)}"] if empty else []
        if reasons:
            methods.setdefault((prompt, "; ".join(reasons)), []).append(method)
    return [
        f"No average of {', '.join(names)} with the prompt {prompt!r} ({reason})."
        for (prompt, reason), names in methods.items()
    ]


def _by_column(scores: Iterable[Score]) -> dict[tuple[str, str], dict[tuple[str, int], Metrics | None]]:
    """(prompt, method) → (data set, seed) → metrics."""
    found: dict[tuple[str, str], dict[tuple[str, int], Metrics | None]] = {}
    for score in scores:
        found.setdefault((score.prompt, score.method), {})[score.dataset, score.seed] = score.metrics
    return found


def _score(run: Run, dataset: str, seed: int, column: Column, bins: int, side: str) -> Score:
    rows = read_rows(run, dataset, seed, column)
    if rows is None:
        return Score(dataset, seed, *column, None, 0, 0, None)
    if not len(rows):
        return Score(dataset, seed, *column, None, rows.unreadable, 0, None)
    metrics = evaluate_rows(rows, n_bins=bins, side=side)
    cosine = math.fsum(rows.mean_cosines) / len(rows)
    known = cosine if math.isfinite(cosine) else None
    return Score(dataset, seed, *column, metrics, rows.unreadable, rows.flagged, known, _sets(rows))


def _sets(rows: Rows) -> SetMetrics | None:
    covered, sizes, answered = (rows.extra(name) for name in ("covered", "set_size", "answered"))
    if covered is None and answered is None:
        return None
    return set_metrics(
        rows.correct,
        covered=None if covered is None else covered > 0,
        sizes=sizes,
        answered=None if answered is None else answered > 0,
    )
