"""Tables from results: the paper's layouts, all metrics of a run, and the one table that closes an evaluation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import METRICS, get_metric, percent
from otpt.metrics.bootstrap import check_level
from otpt.report.cosines import BY as SPLIT_BY
from otpt.report.cosines import SPLITS, group_rows, group_value, init_cosine, two_groups
from otpt.report.formats import FLAGS, KEYS, NOTHING, NUMBERS, Table, shown
from otpt.report.layouts import (
    DEVIATION,
    LAYOUTS,
    layout_datasets,
    layout_methods,
    layout_metrics,
    method_title,
    metric_title,
    prompt_of,
)
from otpt.report.papers import AVERAGE, BACKBONES, layout_tables, table_datasets, wrong_averages
from otpt.report.results import FEW, LEVEL, ResultKey, Results, check_names
from otpt.report.statistics import Resampled, difference, resample_method

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

_EMPTY: dict[str, Any] = {**dict.fromkeys(NUMBERS, np.nan), **dict.fromkeys(FLAGS, False)}

Prompts = Mapping[tuple[str, str], str]
"""(data set, method) → prompt."""


def make_cells(
    results: Results,
    groups: Mapping[str, Sequence[str]],
    prompts: Prompts,
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    level: float | None = None,
) -> pd.DataFrame:
    """Metrics of methods averaged over seeds and over groups of data sets, one row per number.

    The mean is over the data sets of each seed, then over the seeds; the deviation is the sample standard deviation
    over seeds. "…_deviation" is the mean over data sets of their deviations. nan where a data set or a seed is missing.

    Args:
        groups: data sets by the name of their column: {"dtd": ["dtd"], "average": ["dtd", "pets"]}.
        prompts: under which a method is shown.
        level: of bootstrap intervals, None for none.
    """
    plain = list(dict.fromkeys(metric.removesuffix(DEVIATION) for metric in metrics))
    found = []
    for method, (name, datasets) in product(methods, groups.items()):
        own = _chosen(results, datasets, prompts, method)
        replicates = own.groupby(["variant", "seed"], sort=False)
        whole = 0 < len(own) == len(datasets) * replicates.ngroups
        by_seed = replicates[plain].sum(min_count=len(datasets)) / len(datasets)
        means, deviations = by_seed.mean(skipna=False), by_seed.std()
        places = [(dataset, prompts.get((dataset, method), "")) for dataset in datasets]
        resampled: Mapping[str, Resampled] = {}
        if level is not None and whole and own["images"].all():
            resampled = resample_method(results, plain, method, places)
        shown_prompt = "; ".join(dict.fromkeys(prompt for _, prompt in places if prompt))
        keys = {"dataset": name, "method": method, "prompt": shown_prompt, "partial": bool(own["partial"].any())}
        for metric in metrics:
            base = metric.removesuffix(DEVIATION)
            scale = 100.0 if METRICS[base].unit == "%" else 1.0
            cell = {**_EMPTY, **keys, "metric": metric}
            if whole and metric != base:
                cell["value"] = scale * own.groupby("dataset")[base].std().mean(skipna=False)
            elif whole:
                cell["value"], cell["deviation"] = scale * means[base], scale * deviations[base]
                if base in resampled and pd.notna(means[base]):
                    interval = resampled[base].interval(level or LEVEL)
                    cell["low"], cell["high"] = scale * interval.low, scale * interval.high
            found.append(cell)
    return mark_best(pd.DataFrame(found, columns=[*KEYS, *NUMBERS, *FLAGS]))


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
    if paper is not None:
        check_names("backbone of the paper", [paper], BACKBONES)
    if level is not None:
        check_level(level)
    if prompt is not None:
        check_names("prompt", [prompt], results.prompts)
    own_methods = layout_methods(results, layout, methods)
    if layout == "seeds" and len(results.seeds) < 2:
        raise OtptError("The layout 'seeds' needs runs with two or more seeds; these have one.")

    def table(names: Sequence[str], own: Sequence[str], prompt: str | None, printed: pd.DataFrame | None) -> Table:
        return _table(results, layout, names, own, shown_metrics, prompt, paper, printed, level)

    if layout == "medical" and datasets is None:  # a table for each system, with its own data set
        tables = []
        for printed in layout_tables(layout):
            names = [name for name in table_datasets(printed) if name in results.datasets]
            own = [name for name in own_methods if methods is not None or name in set(printed["method"])]
            if names and own:
                tables.append(table(names, own, prompt, printed))
        if not tables:
            raise OtptError(
                "The runs hold no data set of the layout 'medical' with one of its methods; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets and --methods."
            )
        return tables
    own_datasets = layout_datasets(results, layout, datasets)
    if layout == "groups":
        return _group_tables(results, own_datasets, own_methods, prompt, paper)
    if layout != "prompts" or prompt is not None:
        return [table(own_datasets, own_methods, prompt, None)]
    tables = []
    for each in results.prompts:
        names = [name for name in own_datasets if each in results.prompts_of(name)]
        own = [method for method in own_methods if any(each in results.prompts_of(name, method) for name in names)]
        if own:
            tables.append(table(names, own, each, None))
    return tables


def evaluation_table(results: Results) -> Table:
    """The table that closes an evaluation: accuracy, ECE, debiased ECE and NLL of each method.

    A line per data set and method, and averages if there are several data sets. The best value has a star; "≈" marks
    values that differ from it by no more than chance (paired bootstrap, p ≥ 0.05), where all methods saw the same
    images. Of more than 40 lines only the averages are shown.
    """
    groups, notes = all_groups(results), progress_notes(results)
    if len(groups) > 1 and len(groups) * len(results.methods) > _MOST_LINES:
        groups = {AVERAGE: results.datasets}
        notes.append(f"The average over {len(results.datasets)} data sets; 'otpt metrics RUN' shows each.")
    parts = [make_cells(results, groups, own, methods, HEADLINE) for own, methods in by_prompt(results)]
    cells = mark_best(pd.concat(parts, ignore_index=True).dropna(subset=["value"]))
    several = len(parts) > 1
    if not several and results.frame["images"].sum() <= _MOST_ROWS:
        cells = _mark_ties(results, cells, groups, by_prompt(results)[0][0])
    marks = {"best": "* best", "tie": "≈ may differ from the best by chance (paired bootstrap over images, p ≥ 0.05)"}
    legend = [words for flag, words in marks.items() if cells[flag].any()]
    legend += ["± standard deviation over seeds"] if cells["deviation"].notna().any() else []
    notes += [f"{'; '.join(legend)}."] if legend else []
    notes += [*missing_averages(results), *few_images(results)]
    order = list(groups)
    cells = cells.sort_values("dataset", key=lambda names: names.map(order.index), kind="stable")
    rows = ("dataset", "method", "prompt") if several else ("dataset", "method")
    return Table("evaluation", "", cells, rows, "metric", tuple(notes), plain=True, stacked=True)


def metric_tables(results: Results, *, metrics: Sequence[str] | None = None, level: float | None = None) -> list[Table]:
    """All metrics of the runs: of a single data set the tables of :data:`TOPICS`, of several one per metric."""
    names = None if metrics is None else tuple(get_metric(name).name for name in metrics)
    several = len(results.datasets) > 1
    topics = (names,) if names else (ACROSS,) if several else TOPICS
    columns, groups = by_prompt(results), all_groups(results)
    chosen = [name for topic in topics for name in topic]
    parts = [make_cells(results, groups, own, methods, chosen, level=level) for own, methods in columns]
    cells = pd.concat(parts, ignore_index=True).assign(best=False)
    rows = ("method", "prompt") if len(columns) > 1 else ("method",)
    if several:
        return [
            Table("metrics", METRICS[name].heading, cells[cells["metric"] == name], rows, level=level, plain=True)
            for name in chosen
        ]
    title = results.datasets[0]
    return [
        Table("metrics", title, cells[cells["metric"].isin(topic)], rows, "metric", level=level, plain=True)
        for topic in topics
    ]


def set_table(results: Results) -> pd.DataFrame:
    """Prediction sets and abstention as strings, a line per data set, seed and method that has them; may be empty."""
    names = ["coverage", "set_size", "answered", "risk"]
    ends = [f"{name}_{end}" for name in ("coverage", "risk") for end in ("low", "high")]
    found = results.frame.reindex(columns=["method", "dataset", "seed", *names, *ends]).dropna(subset=names, how="all")

    def show(name: str) -> list[str]:
        return [NOTHING if pd.isna(value) else percent(value) for value in found[name]]

    def interval(name: str) -> list[str]:
        return [" … ".join(pair) for pair in zip(show(f"{name}_low"), show(f"{name}_high"), strict=True)]

    return pd.DataFrame(
        {
            "method": found["method"],
            "data set": found["dataset"],
            "seed": found["seed"].astype(str),
            "coverage %": show("coverage"),
            "95 %": interval("coverage"),
            "set size": [NOTHING if pd.isna(size) else f"{size:.2f}" for size in found["set_size"]],
            "answered %": show("answered"),
            "risk %": show("risk"),
            "95 % of it": interval("risk"),
        }
    )


def few_images(results: Results) -> list[str]:
    """A caution about an ECE from few images; empty if there are enough."""
    images = results.frame.loc[results.frame["images"] > 0, "images"]
    if images.empty or images.min() >= FEW:
        return []
    return [
        f"With fewer than {FEW} images of a data set ({images.min()} here), most of an ECE may be bias, which a "
        "calibrated model would have too; the debiased ECE is without it."
    ]


def missing_averages(results: Results) -> list[str]:
    """A sentence that names the methods without an average over the data sets, if there are some."""
    missing = []
    for prompts, methods in by_prompt(results) if len(results.datasets) > 1 else ():
        cells = make_cells(results, {AVERAGE: results.datasets}, prompts, methods, ["accuracy"])
        missing += list(cells.loc[cells["value"].isna(), "method"])
    names = ", ".join(dict.fromkeys(missing))
    return [f"No average of {names}: not evaluated on every data set with the same seeds."] if names else []


def guess_backbone(results: Results) -> str | None:
    """Which of the paper's backbones the runs used; None for another."""
    names = {paper_backbone(str(run.config["backbone"]["architecture"])) for run in results.runs}
    return names.pop() if len(names) == 1 and names <= set(BACKBONES) else None


def paper_backbone(architecture: str) -> str:
    """What papers call an architecture: "ViT-B-16-quickgelu" is "ViT-B/16"."""
    return re.sub(r"^(ViT-\w+)-(\d+)$", r"\1/\2", architecture.replace("-quickgelu", ""))


def progress_notes(results: Results) -> list[str]:
    """Which runs are still in progress."""
    words = [f"{str(run.folder)!r} has {done} of {total} images" for run, done, total in results.progress]
    return [f"… marks numbers of a run in progress: {'; '.join(words)}."] if words else []


def own_note(dataset: str) -> str:
    """Why a paper has no numbers of a data set that only shares the name of one of its own."""
    return (
        f"The runs' {dataset!r} is user-supplied data, not the registered data set, so the paper has no numbers of it."
    )


def _chosen(results: Results, datasets: Collection[str], prompts: Prompts, method: str) -> pd.DataFrame:
    """Rows of a method on data sets under its prompts."""
    own = results.frame[(results.frame["method"] == method) & results.frame["dataset"].isin(list(datasets))]
    return own[own["prompt"] == own["dataset"].map({name: prompts.get((name, method)) for name in datasets})]


def all_groups(results: Results) -> dict[str, Sequence[str]]:
    """Each data set, and their average if there are several."""
    groups: dict[str, Sequence[str]] = {name: [name] for name in results.datasets}
    return {**groups, AVERAGE: results.datasets} if len(groups) > 1 else groups


def by_prompt(results: Results) -> list[tuple[dict[tuple[str, str], str], list[str]]]:
    """Prompts by data set and method, and the methods: once if all have one prompt per data set, else per prompt."""
    held = {
        (dataset, method): prompts
        for dataset in results.datasets
        for method in results.methods
        if (prompts := results.prompts_of(dataset, method))
    }
    if all(len(prompts) == 1 for prompts in held.values()):
        return [({key: prompts[0] for key, prompts in held.items()}, results.methods)]
    found = []
    for prompt in results.prompts:
        own = {key: prompt for key, prompts in held.items() if prompt in prompts}
        found.append((own, [name for name in results.methods if any(name == method for _, method in own)]))
    return found


def _mark_ties(
    results: Results, cells: pd.DataFrame, groups: Mapping[str, Sequence[str]], prompts: Prompts
) -> pd.DataFrame:
    """Mark the values that a paired bootstrap cannot tell from the best of their column."""
    cells = cells.copy()
    for name, datasets in groups.items():
        own = cells[(cells["dataset"] == name) & cells["value"].notna()]
        if own["method"].nunique() < 2:
            continue
        resampled = {}
        for method in dict.fromkeys(own["method"]):
            places = [(dataset, prompts[dataset, method]) for dataset in datasets]
            try:
                resampled[method] = resample_method(results, HEADLINE, method, places)
            except OtptError:  # seeds of a run in progress that have not seen the same images
                return cells
        if len({_images(results, datasets, prompts, method) for method in resampled}) > 1:
            continue
        for metric in HEADLINE:
            column = own[own["metric"] == metric]
            best = column.loc[column["value"].map(METRICS[metric].cost).idxmin(), "method"]
            for at, method, is_best in zip(column.index, column["method"], column["best"], strict=True):
                if not is_best:
                    cells.loc[at, "tie"] = difference(resampled[method][metric], resampled[best][metric]).is_noise
    return cells


def _images(results: Results, datasets: Sequence[str], prompts: Prompts, method: str) -> Any:
    """The images and seeds that a method saw."""
    return tuple(
        (name, seed, results.rows(ResultKey(name, seed, prompts[name, method], method)).ids)
        for name in datasets
        for seed in results.seeds_of(name, method, prompts[name, method])
    )


def _table(
    results: Results,
    layout: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    metrics: Sequence[str],
    prompt: str | None,
    backbone: str | None,
    printed: pd.DataFrame | None,
    level: float | None,
) -> Table:
    form = LAYOUTS[layout]
    prompts = {(d, method): prompt_of(results, d, method, prompt) for d in datasets for method in methods}
    groups: dict[str, Sequence[str]] = {dataset: [dataset] for dataset in datasets}
    if form.average:
        groups[AVERAGE] = datasets
    cells = make_cells(results, groups, prompts, methods, metrics, level=None if layout == "seeds" else level)
    notes = [*progress_notes(results), *_uneven(results, datasets, prompts)]
    if backbone is None:
        printed = None
    elif printed is None:
        printed = _paper_table(layout, backbone, prompt)
        if printed is None:
            notes.append("The paper has no such table for this backbone and prompt.")
    if printed is not None:
        own = [dataset for dataset in datasets if results.is_own(dataset)]
        notes += [own_note(dataset) for dataset in own if dataset in table_datasets(printed)]
        words = printed["prompt"].iloc[0]
        if " " in words and words not in prompts.values():
            notes.append(f"The paper's prompt is {words!r}.")
        cells, wrong = _with_paper(cells, printed, datasets, own)
        notes += wrong
    if level is not None and layout != "seeds":
        notes.append(f"Intervals: {100 * level:g} % bootstrap over images.")
    title = f"{form.title}: {prompt!r}" if layout == "prompts" else form.title
    number = None if printed is None else str(printed["table"].iloc[0])
    shown_level = None if layout == "seeds" else level
    return Table(layout, title, cells, notes=tuple(notes), level=shown_level, paper=number)


def _with_paper(
    cells: pd.DataFrame, printed: pd.DataFrame, datasets: Sequence[str], own: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Cells with the paper's numbers, joined on data set, method and metric; and notes on wrong averages.

    Its average is the mean of its values of the same data sets; what it prints as average has a column of its own.
    User-supplied data have no numbers, whatever they are called.
    """
    keys = ["dataset", "method", "metric"]
    theirs = printed[~printed["dataset"].isin([AVERAGE, *own])].set_index(keys)["value"]
    whole = [name for name in datasets if name not in own]
    means = (
        theirs[theirs.index.isin(whole, level="dataset")]
        .groupby(["method", "metric"])
        .agg(lambda values: values.mean(skipna=False) if len(values) == len(datasets) else np.nan)
    )
    if AVERAGE in set(cells["dataset"]):
        theirs = pd.concat([theirs, pd.concat({AVERAGE: means}, names=["dataset"])])
    cells = cells.assign(paper=theirs.reindex(pd.MultiIndex.from_frame(cells[keys])).to_numpy(dtype=float))
    notes = []
    if AVERAGE in set(cells["dataset"]):
        averages = printed[printed["dataset"] == AVERAGE].set_index(["method", "metric"])["value"]
        wrong = wrong_averages(printed).set_index(["method", "metric"])
        added = cells[cells["dataset"] == AVERAGE].copy()
        pairs = pd.MultiIndex.from_frame(added[["method", "metric"]])
        added[list(NUMBERS)] = np.nan
        added["dataset"], added["best"], added["partial"] = PRINTED, False, False
        if not own:
            added["paper"] = averages.reindex(pairs).to_numpy(dtype=float)
            added["wrong"] = pairs.isin(wrong.index)
        cells = pd.concat([cells, added], ignore_index=True)
        for pair in pairs[added["wrong"].to_numpy(dtype=bool)]:
            what = f"{metric_title(pair[1])} of {method_title(pair[0])}"
            number, each = printed["table"].iloc[0], wrong.loc[pair]
            mean = f"the mean of its row is {each['mean']:.2f}"
            notes.append(f"! Table {number} prints {each['printed']} as average {what}; {mean}.")
    cells["difference"] = cells["value"] - cells["paper"]
    return cells, notes


def _paper_table(layout: str, backbone: str, prompt: str | None) -> pd.DataFrame | None:
    found = layout_tables(layout, backbone)
    if layout == "prompts":
        found = [table for table in found if table["prompt"].iloc[0] == prompt]
    # Tables 9 and 10 are both of SCE; the longer one has all data sets
    return max(found, key=lambda table: len(table_datasets(table)), default=None)


def _uneven(results: Results, datasets: Sequence[str], prompts: Prompts) -> Iterator[str]:
    """Notes on a run that has grown unevenly: methods with different seeds or images of a data set."""
    for dataset in datasets:
        own = [m for d, m in prompts if d == dataset and results.prompts_of(dataset, m)]
        seeds = {method: results.seeds_of(dataset, method, prompts[dataset, method]) for method in own}
        if len({frozenset(each) for each in seeds.values()}) > 1:
            words = "; ".join(f"{method} {', '.join(map(str, each))}" for method, each in seeds.items())
            yield f"The methods have different seeds on {dataset!r}: {words}."
        images = {method: results.images_of(dataset, method) for method in own}
        if len(set(images.values())) > 1:
            words = "; ".join(f"{method} {count}" for method, count in images.items())
            yield f"The methods have different numbers of images of {dataset!r}: {words}."


def _group_tables(
    results: Results, datasets: Sequence[str], methods: Sequence[str], prompt: str | None, paper: str | None
) -> list[Table]:
    """Accuracy and ECE of the images above and below a threshold of TPT's mean cosine similarity.

    The paper says that the threshold is the median; the sizes of its groups fit the similarity of the initial prompt
    better. So there is a table for each.
    """
    check_names("method of the runs, which makes the groups", [SPLIT_BY], results.methods)
    tables = []
    for dataset in datasets:
        words = prompt_of(results, dataset, SPLIT_BY, prompt)
        keys = [ResultKey(dataset, s, words, SPLIT_BY) for s in results.seeds_of(dataset, SPLIT_BY, words)]
        notes = progress_notes(results)
        splits = SPLITS if init_cosine(results, keys[0]) is not None else SPLITS[:1]
        if len(splits) == 1:
            notes.append("The runs hold no method that adapts nothing, so there is no split at the initial value.")
        printed = layout_tables("groups", paper)[0] if paper is not None and not results.is_own(dataset) else None
        for split in splits:
            groups = [two_groups(results, key, split) for key in keys]
            found = []
            for method in (each for each in methods if words in results.prompts_of(dataset, each)):
                rows = [group_rows(results, k._replace(method=method), g) for k, g in zip(keys, groups, strict=True)]
                for metric, (at, part) in product(("accuracy", "ece"), enumerate((":group 1", ":group 2", ""))):
                    masks = [(g.above, ~g.above, np.ones_like(g.above))[at] for g in groups]
                    values = [group_value(results, r, metric, mask) for r, mask in zip(rows, masks, strict=True)]
                    keyed = {"dataset": dataset + part, "method": method, "prompt": words, "metric": metric}
                    partial = bool(results.select(dataset=dataset, method=method)["partial"].any())
                    found.append({**_EMPTY, **keyed, "value": 100.0 * float(np.mean(values)), "partial": partial})
            cells = mark_best(pd.DataFrame(found))
            if printed is not None:
                cells, _ = _with_paper(cells, printed, [dataset], [])
            sizes = [f"{g.above.sum()} above and {(~g.above).sum()} below {g.threshold:.4f}" for g in groups]
            at_value = "its median" if split == "median" else "the initial prompt's value"
            title = f"{dataset}: images split by TPT's mean cosine similarity at {at_value}"
            own_notes = (*notes, f"Sizes of the groups: {'; '.join(sizes)}.")
            number = None if printed is None else str(printed["table"].iloc[0])
            tables.append(Table("groups", title, cells, notes=own_notes, paper=number))
    return tables
