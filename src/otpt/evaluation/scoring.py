"""Every metric from the stored parts alone: ``otpt metrics RUN`` computes, byte for byte, what the run wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from otpt.evaluation.files import as_json, write_atomically
from otpt.evaluation.format import check_bins
from otpt.evaluation.parts import SUM_UNIT, Part
from otpt.evaluation.run import METRICS, Run
from otpt.metrics import (
    NLL_FLOOR,
    Metrics,
    adaptive_ece_from_confidence,
    ece_from_confidence,
    mce_from_confidence,
)
from otpt.metrics.binning import bin_index

Floats = npt.NDArray[np.float64]

AVERAGED = ("accuracy", "top5_accuracy", "ece", "adaptive_ece", "mce", "sce", "brier", "nll", "overconfidence")
"""Metrics of which averages over data sets and deviations over seeds are told."""


@dataclass(frozen=True)
class Score:
    """The metrics of one data set, seed, prompt and method.

    Attributes:
        metrics: None if not a single picture could be read.
        unreadable: pictures that could not be read.
        flagged: pictures with flags.
        mean_cosine: mean over the pictures.
    """

    dataset: str
    seed: int
    prompt: str
    method: str
    metrics: Metrics | None
    unreadable: int
    flagged: int
    mean_cosine: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in ``metrics.json``."""
        where = {"dataset": self.dataset, "seed": self.seed, "prompt": self.prompt, "method": self.method}
        counts = {"unreadable": self.unreadable, "flagged": self.flagged, "mean_cosine": self.mean_cosine}
        return {**where, **counts, **(self.metrics.as_dict() if self.metrics is not None else {"pictures": 0})}


@dataclass(frozen=True)
class Average:
    """A method (and prompt) over all data sets: the mean of each metric, seeds first, then data sets.

    Attributes:
        deviation: sample standard deviation of the average over seeds; None with one seed.
    """

    prompt: str
    method: str
    metrics: dict[str, float]
    deviation: dict[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in ``metrics.json``."""
        return {"prompt": self.prompt, "method": self.method, **self.metrics, "deviation": self.deviation}


def score_run(run: Run, *, bins: int | None = None, side: str | None = None) -> list[Score]:
    """All metrics of the parts that are there; ``bins`` and ``side`` in place of the run's own."""
    bins, side = run.config["bins"] if bins is None else bins, side or run.config["side"]
    check_bins(bins, side)
    scores = []
    for position in range(len(run.datasets)):
        for seed in run.config["seeds"]:
            items = [item for item in run.items if (item.dataset, item.seed) == (position, seed)]
            parts = [part for item in items if (part := run.read(item)) is not None]
            scores += _scores(run, position, seed, parts, bins, side)
    return scores


def write_metrics(run: Run, scores: Sequence[Score]) -> None:
    """``metrics.json`` of each data set and seed, and of the run."""
    for position, dataset in enumerate(run.datasets):
        for seed in run.config["seeds"]:
            own = [score for score in scores if (score.dataset, score.seed) == (dataset["name"], seed)]
            _write(run.metrics_path(position, seed), {"scores": [score.as_dict() for score in own]})
    whole = {"scores": [s.as_dict() for s in scores], "averages": [a.as_dict() for a in averages(scores)]}
    _write(run.folder / METRICS, whole)


def _write(path: Path, value: Any) -> None:
    data = as_json(value)
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)


def averages(scores: Iterable[Score]) -> list[Average]:
    """Of each (prompt, method) that has metrics of every data set and seed; see :func:`left_out`."""
    scores = list(scores)
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    seeds = list(dict.fromkeys(score.seed for score in scores))
    found = []
    for (prompt, method), values in _by_column(scores).items():
        if len(values) != len(datasets) * len(seeds) or None in values.values():
            continue
        by_seed = {
            name: [mean(getattr(values[dataset, seed], name) for dataset in datasets) for seed in seeds]
            for name in AVERAGED
        }
        deviation = {name: stdev(each) for name, each in by_seed.items()} if len(seeds) > 1 else None
        found.append(Average(prompt, method, {name: mean(each) for name, each in by_seed.items()}, deviation))
    return found


def left_out(scores: Sequence[Score]) -> list[str]:
    """A sentence for each prompt whose methods have no average over the data sets, and why."""
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    methods: dict[tuple[str, str], list[str]] = {}
    for (prompt, method), values in _by_column(scores).items() if len(datasets) > 1 else ():
        judged = {name for name, _ in values}
        others = [name for name in datasets if name not in judged]
        empty = list(dict.fromkeys(name for (name, _), metrics in values.items() if metrics is None))
        reasons = [f"not judged with it: {', '.join(others)}"] if others else []
        reasons += [f"without a picture that was read: {', '.join(empty)}"] if empty else []
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


def _scores(run: Run, position: int, seed: int, parts: list[Part], bins: int, side: str) -> list[Score]:
    columns = run.columns(position)
    dataset = run.datasets[position]
    name, classes = str(dataset["name"]), len(dataset["classes"])
    if not parts:
        return [Score(name, seed, *column, None, 0, 0, None) for column in columns]
    table = pa.concat_tables([part.table for part in parts]).combine_chunks()
    sums = SUM_UNIT * np.sum([part.class_sums for part in parts], axis=0)
    found = []
    for k, (prompt, method) in enumerate(columns):
        own = table.take(np.arange(k, table.num_rows, len(columns)))
        good = own.filter(own["error"].is_null())
        unreadable = own.num_rows - good.num_rows
        if good.num_rows == 0:
            found.append(Score(name, seed, prompt, method, None, unreadable, 0, None))
            continue
        flagged = sum(1 for flags in good["flags"].to_pylist() if flags)
        cosine = _mean(_floats(good, "mean_cosine"))
        metrics = _metrics(good, sums[k], classes, bins, side)
        found.append(Score(name, seed, prompt, method, metrics, unreadable, flagged, _finite(cosine)))
    return found


def _metrics(rows: pa.Table, class_sums: Floats, classes: int, bins: int, side: str) -> Metrics:
    """Equal to the bit in whatever order the pictures stand: sums of floats are exact, or of sorted numbers."""
    confidence, probability = _floats(rows, "confidence"), _floats(rows, "probability")
    correct = rows["correct"].to_numpy(zero_copy_only=False).astype(bool)
    order = np.lexsort((correct, confidence))
    confidence, correct = confidence[order], correct[order]
    return Metrics(
        pictures=rows.num_rows,
        classes=classes,
        accuracy=float(correct.mean()),
        top5_accuracy=float((_integers(rows, "rank") < 5).mean()),
        ece=ece_from_confidence(confidence, correct, bins=bins, side=side),
        adaptive_ece=adaptive_ece_from_confidence(confidence, correct, bins=bins),
        mce=mce_from_confidence(confidence, correct, bins=bins, side=side),
        sce=_sce(rows, class_sums, probability, bins, side),
        brier=_mean(_floats(rows, "squares") - 2.0 * probability + 1.0),
        nll=_mean(-np.log(np.clip(probability, NLL_FLOOR, 1.0)) + 0.0),
        confidence=_mean(confidence),
        overconfidence=_mean(confidence - correct),
        entropy=_mean(_floats(rows, "entropy")),
        bins=bins,
        side=side,
    )


def _sce(rows: pa.Table, class_sums: Floats, of_label: Floats, bins: int, side: str) -> float:
    """(1/C) Σ_c Σ_m |Σ_{n in bin m of class c} (p_nc − [y_n = c])| / N.

    Every probability above the lowest bin is stored one by one; the lowest bin holds what is left of a class's sum.
    """
    classes = len(class_sums)
    lists = rows["top_classes"].combine_chunks(), rows["top_probabilities"].combine_chunks()
    column, p = (each.flatten().to_numpy(zero_copy_only=False) for each in lists)
    p = np.minimum(p, 1.0)
    index = bin_index(p, bins, side)
    above = index > 0
    cell, p = column[above].astype(np.int64) * bins + index[above], p[above]
    order = np.lexsort((p, cell))
    cell, p = cell[order], p[order]
    surplus = np.zeros(classes * bins)
    surplus += np.bincount(cell, weights=p, minlength=classes * bins)
    surplus[::bins] += class_sums - np.bincount(cell // bins, weights=p, minlength=classes)
    labels = _integers(rows, "label")
    label_index = bin_index(np.minimum(of_label, 1.0), bins, side)
    inside = label_index >= 0
    surplus -= np.bincount(labels[inside] * bins + label_index[inside], minlength=classes * bins)
    return float(np.abs(surplus).sum() / (rows.num_rows * classes))


def _mean(values: Floats) -> float:
    return math.fsum(values) / len(values)


def _floats(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype=np.float64)


def _integers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype=np.int64)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
