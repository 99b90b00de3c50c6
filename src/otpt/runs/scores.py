"""Metrics of a run from its rows alone, and all results as one DataFrame."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
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
    rows = [score.as_dict() for score in scores]
    whole = {"state": _state(run), "scores": rows, "averages": averages(scores)}
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
    sets: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.get("sets", {}).items()}
    return Score(**own, metrics=metrics, sets=SetMetrics(**sets) if sets else None)


def averages(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Means over data sets, then seeds, of each (prompt, method) that has metrics of every data set and seed.

    Metrics that are undefined on one of them are None. ``deviation`` has the sample standard deviations over seeds;
    None with one seed.
    """
    known = [score.as_dict() for score in scores if score.metrics is not None]
    frame = pd.DataFrame(known, columns=["dataset", "seed", "prompt", "method", *AVERAGED])
    frame = frame.astype(dict.fromkeys(AVERAGED, float))
    datasets = {score.dataset for score in scores}
    found = []
    for (prompt, method), own in frame.groupby(["prompt", "method"], sort=False):
        seeds = {score.seed for score in scores if (score.prompt, score.method) == (prompt, method)}
        if len(own) < len(datasets) * len(seeds):
            continue
        by_seed = own.groupby("seed", sort=False)[list(AVERAGED)].sum(min_count=len(datasets)) / len(datasets)
        means, deviations = by_seed.mean(skipna=False), by_seed.std(skipna=False).dropna().to_dict()
        values = {name: None if math.isnan(value) else value for name, value in means.items()}
        deviation = deviations if len(seeds) > 1 else None
        found.append({"prompt": prompt, "method": method, **values, "deviation": deviation})
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
