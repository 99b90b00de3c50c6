"""Results as a pandas DataFrame: one row per data set, seed, prompt and method, with a column for each metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from otpt.runs.run import Run
from otpt.runs.scores import Score, score_run

if TYPE_CHECKING:
    from otpt.metrics import SetMetrics

KEYS = ("model", "dataset", "variant", "seed", "prompt", "method")
"""Columns that identify a row of :func:`results_frame`; "variant" is "" except for methods that run several times."""


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
    planned = next(
        column["images"][str(score.seed)]
        for dataset in run.datasets
        if dataset["name"] == score.dataset
        for column in dataset["columns"]
        if (column["prompt"]["name"], column["method"]) == (score.prompt, score.method)
    )
    metrics = {"images": 0} if score.metrics is None else score.metrics.as_dict()
    return {
        "model": run.config["backbone"]["name"],
        "dataset": score.dataset,
        "variant": "",
        "seed": score.seed,
        "prompt": score.prompt,
        "method": score.method,
        "run": str(run.folder),
        "planned": planned,
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
