"""Tables from results: the paper's layouts, all metrics of a run, and the one table that closes an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import METRICS, get_metric, percent
from otpt.metrics.bootstrap import check_level
from otpt.report.comparison import Resampled, difference, resample, saw_same_images
from otpt.report.formats import FLAGS, KEYS, NOTHING, NUMBERS, Table, shown
from otpt.report.papers import (
    AVERAGE,
    BACKBONES,
    DEVIATION,
    LAYOUTS,
    choose,
    layout_datasets,
    layout_methods,
    layout_metrics,
    layout_tables,
    mark_errata,
    printed_values,
    prompt_of,
    table_datasets,
)
from otpt.report.results import FEW, ResultKey, Results, check_names
from otpt.report.rows import SPLIT_BY, SPLITS, init_cosine, split_groups

PRINTED = "printed"
"""Column of the averages that a paper prints."""
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

_MOST_ROWS = 100_000
"""Rows of images and methods that are resampled by default: some ten seconds."""
_MOST_LINES = 40
"""Lines of the closing table; of more data sets only the average is shown."""

_NO_TABLE = "The paper has no such table for this backbone and prompt."
_EMPTY: dict[str, Any] = {**dict.fromkeys(NUMBERS, np.nan), **dict.fromkeys(FLAGS, False)}


def make_cells(
    results: Results, groups: Mapping[str, Sequence[str]], metrics: Sequence[str], *, level: float | None = None
) -> pd.DataFrame:
    """Average metrics over seeds and groups of data sets, one row per number.

    The mean is over the data sets of each seed, then over the seeds; the deviation is the sample standard deviation
    over seeds. "…_deviation" is the mean over data sets of their deviations. nan where a data set or a seed is missing.

    Args:
        results: with one prompt of each data set and method.
        groups: data sets by the name of their column: {"dtd": ["dtd"], "average": ["dtd", "pets"]}.
        level: of bootstrap intervals, None for none.
    """
    plain = list(dict.fromkeys(metric.removesuffix(DEVIATION) for metric in metrics))
    found = []
    for method, (name, datasets) in product(results.methods, groups.items()):
        own = results.select(method=method)
        own = own[own["dataset"].isin(list(datasets))]
        replicates = own.groupby(["variant", "seed"], sort=False)
        whole = 0 < len(own) == len(datasets) * replicates.ngroups
        by_seed = replicates[plain].sum(min_count=len(datasets)) / len(datasets)
        means, deviations = by_seed.mean(skipna=False), by_seed.std()
        resampled: Mapping[str, Resampled] = {}
        if level is not None and whole and own["images"].all():
            resampled = resample(results, plain, method_keys(results, method, datasets))
        prompt, partial = "; ".join(dict.fromkeys(own["prompt"])), bool(own["partial"].any())
        for metric in metrics:
            base = metric.removesuffix(DEVIATION)
            scale = 100.0 if METRICS[base].unit == "%" else 1.0
            cell = {**_EMPTY, "dataset": name, "method": method, "prompt": prompt, "metric": metric, "partial": partial}
            if whole and metric != base:
                cell["value"] = scale * own.groupby("dataset")[base].std().mean(skipna=False)
            elif whole:
                cell["value"], cell["deviation"] = scale * means[base], scale * deviations[base]
                if level is not None and base in resampled and pd.notna(means[base]):
                    interval = resampled[base].interval(level)
                    cell["low"], cell["high"] = scale * interval.low, scale * interval.high
            found.append(cell)
    return mark_best(pd.DataFrame(found, columns=[*KEYS, *NUMBERS, *FLAGS]))


def method_keys(results: Results, method: str, datasets: Sequence[str]) -> list[ResultKey]:
    """Return the keys of all results of a method, ordered by data set."""
    return [key for dataset in datasets for key in results.keys_of(dataset, method)]


def mark_best(cells: pd.DataFrame) -> pd.DataFrame:
    """Mark the best value of each data set and metric, as printed; with one method there is none."""
    cells = cells.copy()
    for (_, metric), own in cells[cells["value"].notna()].groupby(["dataset", "metric"], sort=False):
        base = METRICS[metric.removesuffix(DEVIATION)]
        costs = own["value"] if metric.endswith(DEVIATION) else own["value"].map(base.cost)
        if len(costs) > 1:
            best = shown(metric, costs.min())
            cells.loc[own.index, "best"] = [shown(metric, cost) == best for cost in costs]
    return cells


def build_tables(
    results: Results,
    layout: str = "main",
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    prompt: str | None = None,
    paper: str | None = None,
    level: float | None = None,
) -> list[Table]:
    """Make the tables of a layout: one; one per prompt for "prompts"; one per data set and split for "groups".

    Args:
        datasets, methods, metrics: in this order; None for those of the layout.
        prompt: where the runs have several; None for the paper's.
        paper: backbone whose printed numbers are added, None for none.
        level: of bootstrap intervals, None for none.
    """
    check_names("layout", [layout], LAYOUTS)
    shown_metrics = layout_metrics(layout, metrics)
    for kind, name, known in (("backbone of the paper", paper, BACKBONES), ("prompt", prompt, results.prompts)):
        check_names(kind, None if name is None else [name], known)
    if level is not None:
        check_level(level)
    own_methods = layout_methods(results, layout, methods)
    if layout == "seeds" and len(results.seeds) < 2:
        raise OtptError("The layout 'seeds' needs runs with two or more seeds; these have one.")
    parts: list[tuple[list[str], list[str], str | None, pd.DataFrame | None]] = []
    if LAYOUTS[layout].by_table and datasets is None:
        for printed in layout_tables(layout):
            names = [name for name in table_datasets(printed) if name in results.datasets]
            own = [name for name in own_methods if methods is not None or name in set(printed["method"])]
            parts.append((names, own, prompt, printed))
        if not any(names and own for names, own, _, _ in parts):
            raise OtptError(
                f"The runs hold no data set of the layout {layout!r} with one of its methods; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets and --methods."
            )
    else:
        own_datasets = layout_datasets(results, layout, datasets)
        if layout == "groups":
            return _group_tables(results, own_datasets, own_methods, prompt, paper)
        for each in results.prompts if layout == "prompts" and prompt is None else [prompt]:
            held = results.select(prompt=each)
            names = [name for name in own_datasets if name in set(held["dataset"])]
            parts.append((names, [name for name in own_methods if name in set(held["method"])], each, None))
    level = None if layout == "seeds" else level
    return [
        _table(choose(results, names, own, each), layout, each, printed, shown_metrics, paper, level)
        for names, own, each, printed in parts
        if names and own
    ]


def evaluation_table(results: Results, *, averages: bool = False) -> Table:
    """Return the summary table of an evaluation: accuracy, ECE, debiased ECE and NLL of each method.

    A line per data set and method, and averages if there are several data sets. The best value has a star; "≈" marks
    values that differ from it by no more than chance (paired bootstrap, p ≥ 0.05), where all methods saw the same
    images. Of more than 40 lines, or with ``averages``, only the averages are shown.
    """
    groups, notes = all_groups(results), progress_notes(results)
    if len(groups) > 1 and (averages or len(groups) * len(results.methods) > _MOST_LINES):
        groups = {AVERAGE: results.datasets}
        notes.append(f"The average over {len(results.datasets)} data sets; 'otpt metrics RUN' shows each.")
    columns = by_prompt(results)
    cells = pd.concat([make_cells(each, groups, HEADLINE) for each in columns], ignore_index=True)
    missing = cells[(cells["dataset"] == AVERAGE) & (cells["metric"] == HEADLINE[0]) & cells["value"].isna()]
    cells = mark_best(cells.dropna(subset=["value"]))
    several = len(columns) > 1
    if not several and results.frame["images"].sum() <= _MOST_ROWS:
        cells = _mark_ties(results, cells, groups)
    marks = {"best": "* best", "tie": "≈ may differ from the best by chance (paired bootstrap over images, p ≥ 0.05)"}
    legend = [words for flag, words in marks.items() if cells[flag].any()]
    legend += ["± standard deviation over seeds"] if cells["deviation"].notna().any() else []
    notes += [f"{'; '.join(legend)}."] if legend else []
    if not missing.empty:
        names = ", ".join(dict.fromkeys(missing["method"]))
        notes.append(f"No average of {names}: not evaluated on every data set with the same seeds.")
    images = results.frame.loc[results.frame["images"] > 0, "images"].min()
    if images < FEW:
        notes.append(
            f"With fewer than {FEW} images of a data set ({images} here), most of an ECE may be bias, which a "
            "calibrated model would have too; the debiased ECE is without it."
        )
    order = list(groups)
    cells = cells.sort_values("dataset", key=lambda names: names.map(order.index), kind="stable")
    rows = ("dataset", "method", "prompt") if several else ("dataset", "method")
    return Table("evaluation", "", cells, rows, "metric", tuple(notes), plain=True, stacked=True)


def metric_tables(results: Results, *, metrics: Sequence[str] | None = None, level: float | None = None) -> list[Table]:
    """Return tables of all metrics: :data:`TOPICS` for one data set, one table per metric for several."""
    names = None if metrics is None else tuple(get_metric(name).name for name in metrics)
    several = len(results.datasets) > 1
    topics = (names,) if names else (ACROSS,) if several else TOPICS
    columns, groups = by_prompt(results), all_groups(results)
    chosen = [name for topic in topics for name in topic]
    parts = [make_cells(each, groups, chosen, level=level) for each in columns]
    cells = pd.concat(parts, ignore_index=True).assign(best=False)
    rows = ("method", "prompt") if len(columns) > 1 else ("method",)
    if several:
        return [
            Table("metrics", METRICS[name].heading, cells[cells["metric"] == name], rows, level=level, plain=True)
            for name in chosen
        ]
    parts = [cells[cells["metric"].isin(topic)] for topic in topics]
    return [Table("metrics", results.datasets[0], own, rows, "metric", level=level, plain=True) for own in parts]


def set_table(results: Results) -> pd.DataFrame:
    """Format metrics of prediction sets and abstention, one line per data set, seed and method."""
    names = ["coverage", "set_size", "answered", "risk"]
    ends = [f"{name}_{end}" for name in ("coverage", "risk") for end in ("low", "high")]
    found = results.frame.reindex(columns=["method", "dataset", "seed", *names, *ends]).dropna(subset=names, how="all")

    def show(name: str, to_text: Callable[[float], str] = percent) -> pd.Series:
        return found[name].astype(object).map(to_text, na_action="ignore").astype(object).fillna(NOTHING)

    return pd.DataFrame(
        {
            "method": found["method"],
            "data set": found["dataset"],
            "seed": found["seed"].astype(str),
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


def own_note(dataset: str) -> str:
    """Return a note on a user-supplied data set with a registered name."""
    return (
        f"The runs' {dataset!r} is user-supplied data, not the registered data set, so the paper has no numbers of it."
    )


def all_groups(results: Results) -> dict[str, Sequence[str]]:
    """Return a group for each data set, and their average if there are several."""
    groups: dict[str, Sequence[str]] = {name: [name] for name in results.datasets}
    return {**groups, AVERAGE: results.datasets} if len(groups) > 1 else groups


def by_prompt(results: Results) -> list[Results]:
    """Split the results by prompt if a method has several on a data set."""
    if not results.frame.drop_duplicates(["dataset", "method", "prompt"]).duplicated(["dataset", "method"]).any():
        return [results]
    return [results.narrow(results.select(prompt=prompt)) for prompt in results.prompts]


def _mark_ties(results: Results, cells: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Mark the values that a paired bootstrap cannot tell from the best of their column."""
    cells = cells.copy()
    for name, datasets in groups.items():
        own = cells[(cells["dataset"] == name) & cells["value"].notna()]
        sides = {method: method_keys(results, method, datasets) for method in dict.fromkeys(own["method"])}
        if len(sides) < 2 or not saw_same_images(results, list(sides.values())):
            continue
        resampled = {method: resample(results, HEADLINE, keys) for method, keys in sides.items()}
        for metric in HEADLINE:
            column = own[own["metric"] == metric]
            best = column.loc[column["value"].map(METRICS[metric].cost).idxmin(), "method"]
            for at, method in column.loc[~column["best"].astype(bool), "method"].items():
                cells.loc[at, "tie"] = difference(resampled[method][metric], resampled[best][metric]).is_noise
    return cells


def _table(
    results: Results,
    layout: str,
    prompt: str | None,
    printed: pd.DataFrame | None,
    metrics: Sequence[str],
    backbone: str | None,
    level: float | None,
) -> Table:
    """Build a table of a layout, with the ``printed`` numbers of a backbone if given."""
    form, datasets = LAYOUTS[layout], results.datasets
    groups: dict[str, Sequence[str]] = {dataset: [dataset] for dataset in datasets}
    if form.average:
        groups[AVERAGE] = datasets
    cells = make_cells(results, groups, metrics, level=level)
    notes = [*progress_notes(results), *_uneven(results)]
    number = None
    if backbone is not None and printed is None:  # Tables 9 and 10 are both of SCE; the longer one has all data sets
        tables = layout_tables(layout, backbone)
        tables = [each for each in tables if layout != "prompts" or each["prompt"].iloc[0] == prompt]
        printed = max(tables, key=lambda table: len(table_datasets(table)), default=None)
        notes += [_NO_TABLE] if printed is None else []
    if backbone is not None and printed is not None:
        own = [dataset for dataset in datasets if results.is_own(dataset)]
        notes += [own_note(dataset) for dataset in own if dataset in table_datasets(printed)]
        words, number = printed["prompt"].iloc[0], str(printed["table"].iloc[0])
        if " " in words and words not in results.prompts:
            notes.append(f"The paper's prompt is {words!r}.")
        cells, wrong = _with_paper(cells, printed, datasets, own)
        notes += wrong
    if level is not None:
        notes.append(f"Intervals: {100 * level:g} % bootstrap over images.")
    title = f"{form.title}: {prompt!r}" if layout == "prompts" else form.title
    return Table(layout, title, cells, notes=tuple(notes), level=level, paper=number)


def _with_paper(
    cells: pd.DataFrame, printed: pd.DataFrame, datasets: Sequence[str], own: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Join cells with the paper's numbers by data set, method and metric; return them with notes on errata.

    Its average is the mean of its values of the same data sets; what it prints as average has a column of its own.
    User-supplied data have no numbers, whatever they are called.
    """
    held = printed[~printed["dataset"].isin(own)]
    cells = cells.assign(paper=printed_values(cells, held[held["dataset"] != AVERAGE], datasets))
    averages = cells[cells["dataset"] == AVERAGE].assign(**_EMPTY)
    notes: list[str] = []
    if not own and len(averages):
        averages["paper"] = printed_values(averages, printed, [])
        averages, notes = mark_errata(averages, printed)
    cells = pd.concat([cells, averages.assign(dataset=PRINTED)], ignore_index=True) if len(averages) else cells
    return cells.assign(difference=cells["value"] - cells["paper"]), notes


def _uneven(results: Results) -> Iterator[str]:
    """Yield notes on methods with different seeds or images of a data set."""
    for dataset in results.datasets:
        by_method = results.select(dataset=dataset).groupby("method", sort=False)
        seeds = by_method["seed"].agg(lambda own: ", ".join(map(str, own.unique())))
        images = by_method["planned"].max()
        for what, values in (("seeds on", seeds), ("numbers of images of", images)):
            if values.nunique() > 1:
                words = "; ".join(f"{method} {value}" for method, value in values[results.methods].items())
                yield f"The methods have different {what} {dataset!r}: {words}."


def _group_tables(
    results: Results, datasets: Sequence[str], methods: Sequence[str], prompt: str | None, paper: str | None
) -> list[Table]:
    """Compute accuracy and ECE of the images above and below a threshold of TPT's mean cosine similarity.

    The paper says that the threshold is the median; the sizes of its groups fit the similarity of the initial prompt
    better. So there is a table for each.
    """
    check_names("method of the runs, which makes the groups", [SPLIT_BY], results.methods)
    tables = []
    for dataset in datasets:
        words = prompt_of(results, dataset, SPLIT_BY, prompt)
        own = choose(
            results, [dataset], [name for name in methods if words in results.prompts_of(dataset, name)], words
        )
        notes = progress_notes(results)
        splits = SPLITS if init_cosine(results, own.keys_of()[0]) is not None else SPLITS[:1]
        if len(splits) == 1:
            notes.append("The runs hold no method that adapts nothing, so there is no split at the initial value.")
        printed = None
        if paper is not None and not results.is_own(dataset):
            printed = next(iter(layout_tables("groups", paper)), None)
            notes += [_NO_TABLE] if printed is None else []
        for split in splits:
            frame = split_groups(own, dataset, split)
            groups = {name: [name] for name in dict.fromkeys(frame["dataset"])}
            cells = make_cells(own.narrow(frame, list(groups)), groups, ("accuracy", "ece")).assign(deviation=np.nan)
            number = None
            if printed is not None:
                cells, number = _with_paper(cells, printed, [dataset], [])[0], str(printed["table"].iloc[0])
            first = frame[frame["method"] == own.methods[0]].pivot(index=["variant", "seed"], columns="dataset")
            sizes = zip(*(first["images", name] for name in groups), first["threshold", dataset], strict=True)
            words_of_sizes = [f"{above} above and {below} below {value:.4f}" for above, below, _, value in sizes]
            at_value = "its median" if split == "median" else "the initial prompt's value"
            title = f"{dataset}: images split by TPT's mean cosine similarity at {at_value}"
            own_notes = (*notes, f"Sizes of the groups: {'; '.join(words_of_sizes)}.")
            tables.append(Table("groups", title, cells, notes=own_notes, paper=number))
    return tables
