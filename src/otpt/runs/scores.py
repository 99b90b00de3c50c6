"""Metrics of a run from its rows alone, and all results as one DataFrame."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from statistics import mean, stdev
from typing import Any

import pandas as pd

from otpt._version import __version__
from otpt.files import as_json, parse_json, write_atomically
from otpt.metrics import METRICS, Metrics, SetMetrics, evaluate_rows, set_metrics
from otpt.metrics.inputs import check_bins
from otpt.runs.rows import Rows, read_rows
from otpt.runs.run import METRICS_FILE, Column, Run

MAX_BINS = 100
"""Probabilities of one percent and more are stored one by one."""
KEYS = ("model", "dataset", "variant", "seed", "prompt", "method")
"""Columns that identify a row of :func:`results_frame`; "variant" is "" except for methods that run several times."""

AVERAGED = tuple(each.name for each in fields(Metrics) if each.name in METRICS and METRICS[each.name].best)
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
    """All metrics of the existing rows; ``bins`` and ``side`` replace the run's own.

    Metrics that were stored in ``metrics.json`` are read back unless shards changed since.
    """
    scoring = run.config.scoring
    bins, side = scoring.bins if bins is None else bins, side or scoring.side
    check_bins(bins, side, most=MAX_BINS)
    stored = _read_metrics(run)
    if stored is not None and (bins, side) == (scoring.bins, scoring.side):
        return stored
    return [_score(run, dataset, seed, column, bins, side) for dataset, seed, column in run.everything()]


def write_metrics(run: Run, scores: Sequence[Score]) -> None:
    """Write ``metrics.json``."""
    whole = {
        "state": _state(run),
        "scores": [score.as_dict() for score in scores],
        "averages": [average.as_dict() for average in averages(scores)],
    }
    write_atomically(run.folder / METRICS_FILE, as_json(whole))


def _read_metrics(run: Run) -> list[Score] | None:
    """The scores in ``metrics.json``; None if they are missing, or not those of the present shards and bins."""
    try:
        content = parse_json((run.folder / METRICS_FILE).read_text(encoding="utf-8"))
        if content["state"] != _state(run):
            return None
        return [_from_dict(each) for each in content["scores"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _state(run: Run) -> str:
    """A digest of what metrics depend on: version, bins, and name, size and time of every shard."""
    digest = hashlib.sha256(f"{__version__} {run.config.scoring.bins} {run.config.scoring.side}".encode())
    for path in run.shard_files():
        with suppress(OSError):
            stat = path.stat()
            digest.update(f"{path.relative_to(run.folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _from_dict(values: dict[str, Any]) -> Score:
    """The inverse of :meth:`Score.as_dict`."""
    own = {
        name: values[name] for name in ("dataset", "seed", "prompt", "method", "unreadable", "flagged", "mean_cosine")
    }
    known = {each.name for each in fields(Metrics)}
    metrics = Metrics(**{name: values[name] for name in known}) if values["images"] else None
    sets = {k: tuple(v) if isinstance(v, list) else v for k, v in values.get("sets", {}).items()}
    return Score(**own, metrics=metrics, sets=SetMetrics(**sets) if sets else None)


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


def results_frame(runs: Run | Iterable[Run], *, n_bins: int | None = None, side: str | None = None) -> pd.DataFrame:
    """All metrics of all runs, computed from their rows.

    Args:
        runs: opened run folders; of different models or data sets, too.
        n_bins: number of bins of the calibration errors; each run's own by default.
        side: closed side of the bins, "right" or "left"; each run's own by default.

    Returns:
        A row per model, data set, variant, seed, prompt and method, in the order of the runs. Columns: these keys,
        ``run`` (the folder), ``images`` (evaluated), ``planned`` (requested), ``unreadable``, ``flagged``, the fields
        of :class:`otpt.metrics.Metrics` as fractions, ``mean_cosine``, and for prediction sets and abstention those of
        :class:`otpt.metrics.SetMetrics`, intervals as ``…_low`` and ``…_high``. Undefined values are NaN.
    """
    opened = [runs] if isinstance(runs, Run) else list(runs)
    rows = [_row(run, score) for run in opened for score in score_run(run, bins=n_bins, side=side)]
    return pd.DataFrame(rows, columns=None if rows else [*KEYS, "run", "images"])


def _row(run: Run, score: Score) -> dict[str, Any]:
    dataset = run.dataset(score.dataset)
    metrics = {"images": 0} if score.metrics is None else score.metrics.as_dict()
    return {
        "model": run.config.backbone.name,
        "dataset": dataset.base_name,
        "variant": dataset.variant,
        "seed": score.seed,
        "prompt": score.prompt,
        "method": score.method,
        "run": str(run.folder),
        "planned": run.column(score.dataset, (score.prompt, score.method)).images[score.seed],
        "unreadable": score.unreadable,
        "flagged": score.flagged,
        **metrics,
        "mean_cosine": score.mean_cosine,
        **({} if score.sets is None else _flat(score.sets)),
    }


def _flat(sets: SetMetrics) -> dict[str, Any]:
    """Fields of the set metrics, with an interval as two columns."""
    found: dict[str, Any] = {}
    for name, value in sets.as_dict().items():
        if isinstance(value, list):
            found[f"{name.removesuffix('_interval')}_low"], found[f"{name.removesuffix('_interval')}_high"] = value
        else:
            found[name] = value
    return found
