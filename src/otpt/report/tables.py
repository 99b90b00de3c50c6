"""Tables from results: all metrics of a run, and the one table that closes an evaluation.

:mod:`otpt.report.layouts` has the layouts of ``otpt table``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from otpt.metrics import METRICS, get_metric, percent
from otpt.report.comparison import Resampled, Side, correct_family, paired_tests, saw_same_images
from otpt.report.formats import FLAGS, KEYS, NOTHING, NUMBERS, Table, shown
from otpt.report.results import FEW, ResultKey, Results
from otpt.report.selection import AVERAGE, DEVIATION, all_groups, by_prompt

HEADLINE = ("accuracy", "ece", "debiased_ece", "nll")
"""Metrics of the table that closes an evaluation."""
TOPICS = (
    ("accuracy", "top5_accuracy", "macro_f1", "brier", "nll"),
    ("ece", "debiased_ece", "adaptive_ece", "mce", "sce"),
    ("smooth_ece", "ks_error", "overconfidence", "top_label_brier"),
    ("aurc", "excess_aurc", "auroc", "fpr95", "selective_accuracy", "coverage_at_risk"),
)
"""Tables of all metrics of a data set: accuracy, calibration with bins and without, selective prediction."""
ACROSS = ("accuracy", "ece", "debiased_ece", "sce")
"""Metrics that have a table each where there are several data sets."""
EMPTY: Mapping[str, float | bool] = {**dict.fromkeys(NUMBERS, np.nan), **dict.fromkeys(FLAGS, False)}
"""Numbers and flags of a cell without a value."""

_MOST_ROWS = 200_000
"""Rows of images and methods, for each number, that are resampled by default: some ten seconds."""
_MOST_LINES = 40
"""Lines of the closing table; of more data sets only the average is shown."""


def make_cells(
    results: Results, groups: Mapping[str, Sequence[str]], metrics: Sequence[str], *, level: float | None = None
) -> pd.DataFrame:
    """Average metrics over seeds and groups of data sets, one row per number, with marks.

    The mean is over the data sets of each seed, then over the seeds; the deviation is the sample standard deviation
    over seeds. "…_deviation" is the mean over data sets of their deviations. nan where a data set or a seed is missing.

    Args:
        results: results with one prompt of each data set and method.
        groups: data sets by the name of their column: {"dtd": ["dtd"], "average": ["dtd", "pets"]}.
        metrics: names of metrics, or of their deviations over seeds.
        level: confidence level of the bootstrap intervals; None omits them.
    """
    cells = mark_cells(unmarked_cells(results, groups, metrics, level=level))
    return cells[[*KEYS, *NUMBERS, *FLAGS]]


def unmarked_cells(
    results: Results, groups: Mapping[str, Sequence[str]], metrics: Sequence[str], *, level: float | None = None
) -> pd.DataFrame:
    """Return the cells of :func:`make_cells` without marks; the column "side" has what tests of them need."""
    plain = tuple(dict.fromkeys(metric.removesuffix(DEVIATION) for metric in metrics))
    cells = []
    for method, (name, datasets) in product(results.methods, groups.items()):
        scores = results.select(method=method)
        scores = scores[scores["dataset"].isin(list(datasets))]
        replicates = scores.groupby(["variant", "seed"], sort=False)
        is_whole = 0 < len(scores) == len(datasets) * replicates.ngroups
        by_seed = replicates[list(plain)].sum(min_count=len(datasets)) / len(datasets)
        means, deviations = by_seed.mean(skipna=False), by_seed.std()
        side = Side(results, tuple(method_keys(results, method, datasets)), plain)
        resampled: Mapping[str, Resampled] = {}
        if level is not None and is_whole and scores["images"].all():
            resampled = side.resampled
        prompt = "; ".join(dict.fromkeys(scores["prompt"]))
        is_partial = bool(scores["partial"].any())
        for metric in metrics:
            base = metric.removesuffix(DEVIATION)
            scale = 100.0 if METRICS[base].unit == "%" else 1.0
            keys = {"dataset": name, "method": method, "prompt": prompt, "metric": metric}
            cell: dict[str, object] = {**EMPTY, **keys, "partial": is_partial, "side": side}
            if is_whole and metric != base:
                cell["value"] = scale * scores.groupby("dataset")[base].std().mean(skipna=False)
            elif is_whole:
                cell["value"] = scale * means[base]
                cell["deviation"] = scale * deviations[base]
                if level is not None and base in resampled and pd.notna(means[base]):
                    interval = resampled[base].interval(level)
                    cell["low"] = scale * interval.low
                    cell["high"] = scale * interval.high
            cells.append(cell)
    return pd.DataFrame(cells, columns=[*KEYS, *NUMBERS, *FLAGS, "side"])


def method_keys(results: Results, method: str, datasets: Sequence[str]) -> list[ResultKey]:
    """Return the keys of all results of a method, ordered by data set."""
    return [key for dataset in datasets for key in results.keys_of(dataset, method)]


def mark_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Mark the best value of each data set and metric, and those that may differ from it by chance.

    The tests are those of :func:`~otpt.report.compare_with_others`: the best against all others, paired by images and
    corrected for their number. Values are not tested where methods saw other images, or where there are too many.
    """
    cells = mark_best(cells)
    if _too_many(cells):
        return cells
    for _, group in cells[cells["value"].notna()].groupby("dataset", sort=False):
        if not saw_same_images(list(group["side"])):
            continue
        for metric, column in group.groupby("metric", sort=False):
            best = column["best"].astype(bool)
            if metric in METRICS and best.any() and not best.all():
                winner = column["value"].map(METRICS[metric].cost).idxmin()
                others = column.index.drop(winner)
                tests = [paired_tests(cells["side"][winner], cells["side"][other])[metric] for other in others]
                noise = pd.Series([test.is_noise for test in correct_family(tests)], others)
                cells.loc[others, "tie"] = noise & ~best[others]
    return cells


def mark_best(cells: pd.DataFrame) -> pd.DataFrame:
    """Mark the best value of each data set and metric, as printed; with one method there is none."""
    cells = cells.copy()
    columns = cells[cells["value"].notna()].groupby(["dataset", "metric"], sort=False)
    for (_, metric), column in columns:
        base = METRICS[metric.removesuffix(DEVIATION)]
        costs = column["value"] if metric.endswith(DEVIATION) else column["value"].map(base.cost)
        if len(costs) > 1:
            best = shown(metric, costs.min())
            cells.loc[column.index, "best"] = [shown(metric, cost) == best for cost in costs]
    return cells


def _too_many(cells: pd.DataFrame) -> bool:
    """Return whether tests of all cells would take long."""
    return sum(side.size for side in cells["side"].drop_duplicates()) > _MOST_ROWS


def few_images_note(images: int) -> str:
    """Return the caution about the size of an ECE of few images, or "" for enough of them.

    Args:
        images: smallest number of images of a data set.
    """
    if images >= FEW:
        return ""
    return (
        f"With fewer than {FEW} images of a data set ({images} here), take the size of an ECE from the debiased ECE: a "
        "calibrated model has one, too."
    )


def evaluation_table(results: Results, *, averages: bool = False) -> Table:
    """Return the summary table of an evaluation: accuracy, ECE, debiased ECE and NLL of each method.

    A line per data set and method, and averages if there are several data sets, with the marks of :func:`mark_cells`.
    Of more than 40 lines, or with ``averages``, only the averages are shown.
    """
    groups = all_groups(results)
    notes = progress_notes(results)
    if len(groups) > 1 and (averages or len(groups) * len(results.methods) > _MOST_LINES):
        groups = {AVERAGE: results.datasets}
        notes.append(f"The average over {len(results.datasets)} data sets; 'otpt metrics RUN' shows each.")
    parts = by_prompt(results)
    cells = pd.concat([unmarked_cells(part, groups, HEADLINE) for part in parts], ignore_index=True)
    missing = cells[(cells["dataset"] == AVERAGE) & (cells["metric"] == HEADLINE[0]) & cells["value"].isna()]
    cells = mark_cells(cells.dropna(subset=["value"])).drop(columns="side")
    if not missing.empty:
        names = ", ".join(dict.fromkeys(missing["method"]))
        notes.append(f"No average of {names}: not evaluated on every data set with the same seeds.")
    caution = few_images_note(results.frame.loc[results.frame["images"] > 0, "images"].min())
    notes += [caution] if caution else []
    order = list(groups)
    cells = cells.sort_values("dataset", key=lambda names: names.map(order.index), kind="stable")
    rows = ("dataset", "method", "prompt") if len(parts) > 1 else ("dataset", "method")
    return Table("evaluation", "", cells, rows, "metric", tuple(notes), stacked=True)


def metric_tables(results: Results, *, metrics: Sequence[str] | None = None, level: float | None = None) -> list[Table]:
    """Return tables of all metrics: :data:`TOPICS` for one data set, one table per metric for several."""
    has_datasets = len(results.datasets) > 1
    topics: Sequence[Sequence[str]] = (ACROSS,) if has_datasets else TOPICS
    if metrics:
        topics = (tuple(get_metric(name).name for name in metrics),)
    names = [name for topic in topics for name in topic]
    parts = by_prompt(results)
    groups = all_groups(results)
    cells = pd.concat([unmarked_cells(part, groups, names, level=level) for part in parts], ignore_index=True)
    rows = ("method", "prompt") if len(parts) > 1 else ("method",)
    if has_datasets:
        return [
            Table("metrics", METRICS[name].heading, cells[cells["metric"] == name], rows, level=level) for name in names
        ]
    title = results.datasets[0]
    return [
        Table("metrics", title, cells[cells["metric"].isin(topic)], rows, "metric", level=level) for topic in topics
    ]


def set_table(results: Results) -> pd.DataFrame:
    """Format metrics of prediction sets and abstention, one line per data set, seed and method."""
    names = ["coverage", "set_size", "answered", "risk"]
    ends = [f"{name}_{end}" for name in ("coverage", "risk") for end in ("low", "high")]
    columns = ["method", "dataset", "seed", *names, *ends]
    scores = results.frame.reindex(columns=columns).dropna(subset=names, how="all")

    def show(name: str, to_text: Callable[[float], str] = percent) -> pd.Series:
        return scores[name].astype(object).map(to_text, na_action="ignore").astype(object).fillna(NOTHING)

    return pd.DataFrame(
        {
            "method": scores["method"],
            "data set": scores["dataset"],
            "seed": scores["seed"].astype(str),
            "coverage %": show("coverage"),
            "95 %": show("coverage_low") + " … " + show("coverage_high"),
            "set size": show("set_size", "{:.2f}".format),
            "answered %": show("answered"),
            "risk %": show("risk"),
            "95 % of it": show("risk_low") + " … " + show("risk_high"),
        }
    )


def progress_notes(results: Results) -> list[str]:
    """Return notes on runs in progress."""
    words = [f"{str(run.folder)!r} has {done} of {total} images" for run, done, total in results.progress]
    return [f"… marks numbers of a run in progress: {'; '.join(words)}."] if words else []


def uneven_notes(results: Results) -> Iterator[str]:
    """Yield notes on methods with different seeds or images of a data set."""
    for dataset in results.datasets:
        by_method = results.select(dataset=dataset).groupby("method", sort=False)
        seeds = by_method["seed"].agg(lambda column: ", ".join(map(str, column.unique())))
        images = by_method["planned"].max()
        for what, values in (("seeds on", seeds), ("numbers of images of", images)):
            if values.nunique() > 1:
                words = "; ".join(f"{method} {value}" for method, value in values[results.methods].items())
                yield f"The methods have different {what} {dataset!r}: {words}."


def interval_note(level: float) -> str:
    """Return the note on the intervals of a table."""
    return f"Intervals: {100 * level:g} % bootstrap over images."
