"""Metrics of a run from its rows alone, as one DataFrame."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields

import pandas as pd

from otpt._version import __version__
from otpt.errors import OtptError
from otpt.files import Json, as_json, parse_json, write_atomically
from otpt.metrics import METRICS, Metrics, evaluate_rows, set_metrics
from otpt.metrics.inputs import check_bins
from otpt.metrics.multi_label import METRICS as LABEL_METRICS
from otpt.metrics.multi_label import multi_label_table
from otpt.runs.config import Scoring
from otpt.runs.run import METRICS_FILE, Column, Run
from otpt.runs.shards import LabelRows, Rows

MAX_BINS = 100
"""Maximum number of bins, since probabilities below one percent are not stored individually."""
KEYS = ("model", "dataset", "variant", "seed", "prompt", "method")
"""Columns that identify a row of :func:`results_frame`; "variant" is "" except for methods that run several times."""

AVERAGED = tuple(field.name for field in fields(Metrics) if field.name in METRICS and METRICS[field.name].best)
"""Metrics that are averaged over data sets, with deviations over seeds."""
SHORT = ("accuracy", "ece", "debiased_ece", "nll")
"""Metrics of a short table."""


def results_frame(runs: Run | Iterable[Run], *, n_bins: int | None = None, side: str | None = None) -> pd.DataFrame:
    """Compute all metrics of all runs from their rows.

    Metrics that were stored in ``metrics.json`` are read back unless shards changed since.

    Args:
        runs: opened run folders; of different models or data sets, too.
        n_bins: number of bins of the calibration errors; each run's own by default.
        side: closed side of the bins, "right" or "left"; each run's own by default.

    Returns:
        A row per model, data set, variant, seed, prompt and method, in the order of the runs. Columns: these keys,
        ``run`` (the folder), ``images`` (evaluated), ``planned`` (requested), ``unreadable``, ``flagged``, the fields
        of :class:`otpt.metrics.Metrics` as fractions, ``mean_cosine``, and for prediction sets and abstention those of
        :class:`otpt.metrics.SetMetrics`, intervals as ``…_low`` and ``…_high``. Undefined values are NaN. Runs with
        several labels per image have the metrics of :mod:`otpt.metrics.multi_label` instead.
    """
    opened = [runs] if isinstance(runs, Run) else list(runs)
    rows = [row for run in opened for row in _named(run, score_run(run, n_bins=n_bins, side=side))]
    return _frame(rows) if rows else pd.DataFrame(columns=[*KEYS, "run", "images"])


def short_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Format the main metrics of a results frame, with the keys that distinguish its rows."""
    keys = [key for key in KEYS if key in frame and (key in ("dataset", "method") or frame[key].nunique() > 1)]
    shown = frame[keys].copy()
    for name in SHORT if "accuracy" in frame else ():
        shown[METRICS[name].heading] = [METRICS[name].format(value) for value in frame[name]]
    return shown.join(frame[["map", "micro_f1", "label_ece"]].round(4)) if "map" in frame else shown


def label_results(runs: Iterable[Run], *, n_bins: int | None = None) -> pd.DataFrame:
    """Compute metrics of runs with several labels per image, over all labels and of each, with 95 % intervals.

    The columns are model, dataset, seed, prompt and method, and those of
    :func:`otpt.metrics.multi_label.multi_label_table`.
    """
    tables = []
    for run in runs:
        for dataset, seed, (prompt, method) in run.everything():
            rows = run.label_rows(dataset, seed, (prompt, method))
            if rows is None or not len(rows):
                continue
            bins, labels = n_bins or run.config.scoring.n_bins, run.dataset(dataset).classes
            table = multi_label_table(rows.probabilities, rows.present, labels, n_bins=bins)
            keys = {"model": run.config.backbone.name, "dataset": dataset, "seed": seed}
            tables.append(pd.DataFrame({**keys, "prompt": prompt, "method": method, **table}))
    if not tables:
        raise OtptError("The runs hold no image with several labels yet; repeat their commands to continue.")
    return pd.concat(tables, ignore_index=True)


def _named(run: Run, scores: Iterable[Mapping[str, Json]]) -> list[dict[str, Json]]:
    return [{"model": run.config.backbone.name, "run": str(run.folder), **score} for score in scores]


def _frame(rows: list[dict[str, Json]]) -> pd.DataFrame:
    """Return a data frame in which metrics are numbers, also where no image could be read."""
    frame = pd.DataFrame(rows)
    return frame.astype({name: float for name in (*SHORT, *AVERAGED) if name in frame})


def score_run(run: Run, *, n_bins: int | None = None, side: str | None = None) -> list[Mapping[str, Json]]:
    """Return the rows of :func:`results_frame` of one run, as in ``metrics.json``."""
    stored = run.config.scoring
    scoring = Scoring(n_bins=stored.n_bins if n_bins is None else n_bins, side=side or stored.side)
    check_bins(scoring.n_bins, scoring.side, most=MAX_BINS)
    if scoring == stored:
        with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged: computed again
            return _stored_scores(run)
    return [_score(run, *key, scoring) for key in run.everything()]


def _stored_scores(run: Run) -> list[Mapping[str, Json]]:
    """Read ``metrics.json``; raise ``ValueError`` if it is of other shards."""
    content: object = parse_json((run.folder / METRICS_FILE).read_text(encoding="utf-8"))
    if not isinstance(content, Mapping) or content["state"] != _state(run):
        raise ValueError("metrics of other shards")
    return list(content["scores"])


def write_metrics(run: Run) -> pd.DataFrame:
    """Write ``metrics.json``; returns the metrics as :func:`results_frame`."""
    scores = score_run(run)
    frame = _frame(_named(run, scores))
    whole = {"state": _state(run), "scores": scores, "averages": averages(frame)}
    write_atomically(run.folder / METRICS_FILE, as_json(whole))
    return frame


def _state(run: Run) -> str:
    """Return a digest of the inputs of metrics: version, bins, and name, size and time of every shard."""
    scoring = run.config.scoring
    planned = [(*key, run.column(key[0], key[2]).images[key[1]]) for key in run.everything()]
    digest = hashlib.sha256(f"{__version__} {scoring.n_bins} {scoring.side} {planned}".encode())
    for path in run.shard_files():
        with suppress(OSError):
            stat = path.stat()
            digest.update(f"{path.relative_to(run.folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _score(run: Run, dataset: str, seed: int, column: Column, scoring: Scoring) -> dict[str, Json]:
    config = run.dataset(dataset)
    rows = (run.label_rows if run.multi_label else run.rows)(dataset, seed, column)
    score: dict[str, Json] = {
        "dataset": config.base_name,
        "variant": config.variant,
        "seed": seed,
        "prompt": column[0],
        "method": column[1],
        "planned": run.column(dataset, column).images[seed],
        "unreadable": 0 if rows is None else rows.unreadable,
        "flagged": 0 if rows is None else rows.flagged,
        "images": 0,
        "mean_cosine": None,
    }
    if rows is None or not len(rows):
        return score if run.multi_label else {**score, **dict.fromkeys(AVERAGED)}
    n_bins = scoring.n_bins
    if isinstance(rows, LabelRows):
        score |= {"images": len(rows), "classes": len(config.classes)}
        for name, (_, metric) in LABEL_METRICS.items():
            value = metric(rows.probabilities, rows.present, n_bins=n_bins)
            score[name] = None if math.isnan(value) else value
        return {**score, "n_bins": n_bins}
    cosine = math.fsum(rows.mean_cosines) / len(rows)
    score["mean_cosine"] = cosine if math.isfinite(cosine) else None
    metrics = evaluate_rows(rows, n_bins=n_bins, side=scoring.side).as_dict()
    return {**score, **metrics, **_set_scores(rows)}


def _set_scores(rows: Rows) -> dict[str, Json]:
    """Return metrics of prediction sets and abstention, with two columns per interval."""
    covered = rows.extra("covered")
    answered = rows.extra("answered")
    if covered is None and answered is None:
        return {}
    sets = set_metrics(
        rows.correct,
        covered=None if covered is None else covered > 0,
        sizes=rows.extra("set_size"),
        answered=None if answered is None else answered > 0,
    )
    scores: dict[str, Json] = {}
    for name, value in sets.as_dict().items():
        if isinstance(value, list):
            base = name.removesuffix("_interval")
            scores[f"{base}_low"], scores[f"{base}_high"] = value
        else:
            scores[name] = value
    return scores


def averages(frame: pd.DataFrame) -> list[dict[str, Json]]:
    """Average over data sets, then seeds, for each (prompt, method) with metrics of every data set and seed.

    Metrics that are undefined on one of them are None. ``deviation`` has the sample standard deviations over seeds;
    None with one seed.
    """
    datasets = len(frame[["dataset", "variant"]].drop_duplicates())
    rows: list[dict[str, Json]] = []
    for (prompt, method), scores in frame.groupby(["prompt", "method"], sort=False):
        seeds = scores["seed"].nunique()
        if len(scores) < datasets * seeds or not scores["images"].all():
            continue
        values = scores.reindex(columns=list(AVERAGED)).astype(float)
        by_seed = values.groupby(scores["seed"], sort=False).sum(min_count=datasets) / datasets
        means = {name: None if math.isnan(mean) else mean for name, mean in by_seed.mean(skipna=False).items()}
        deviation = by_seed.std(skipna=False).dropna().to_dict() if seeds > 1 else None
        rows.append({"prompt": prompt, "method": method, **means, "deviation": deviation})
    return rows
