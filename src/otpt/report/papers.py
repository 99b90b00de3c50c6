"""Numbers that papers print, the protocols under which they were measured, and the layouts of their tables.

``published.csv`` has a row for each paper, table, backbone, data set, method and metric, with the value as printed;
"average" is the average that the paper prints, and an empty value a cell without a number. Names are this package's.
Values are percent (SCE: 10⁻²). ``layouts.toml`` has the layouts of the O-TPT paper's tables.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import pydantic.dataclasses

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.results import Results, check_names

OTPT = "otpt"
"""The O-TPT paper, whose layouts ``otpt table`` has."""
BACKBONES = ("ViT-B/16", "RN50")
"""Backbones of the O-TPT paper's main tables."""
SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
"""Data sets under distribution shift."""
AVERAGE = "average"
DEVIATION = "_deviation"
"""Ends the name of a metric's standard deviation over seeds."""

_ALIASES = {"e-cots": ("cots", "weak-strong")}
_VARIANT = re.compile(r"(?P<base>.+)\[(?P<settings>[^\[\]]+=[^\[\]]+)\]")


@pydantic.dataclasses.dataclass(frozen=True)
class Layout:
    """A form of table; see ``layouts.toml``."""

    title: str
    metrics: tuple[str, ...] = ("accuracy", "ece")
    chosen: bool = False
    shifts: bool = False
    average: bool = True
    by_table: bool = False
    needs: str = ""


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("otpt.report").joinpath(name).read_text(encoding="utf-8"))


_DATA = _read_toml("layouts.toml")
LAYOUTS = {name: Layout(**each) for name, each in _DATA["layouts"].items()}
"""Layouts of the paper's tables, by name."""


@pydantic.dataclasses.dataclass(frozen=True)
class Paper:
    """Source and protocol of a paper's numbers, with None for unstated fields.

    Attributes:
        augmix: whether views are mixed, by "fine-grained", "imagenet" and "shift".
        own: parts of names of the authors' own methods.
        others: who measured the other methods.
        confidence: how the numbers are known.
        inferred: which parts of the protocol were concluded from the numbers.
        not_implemented: methods, or parts of their names, that this package does not have, and why.
        errata: printed numbers that contradict others of the same paper.
    """

    name: str
    title: str
    source: str
    views: int | None = None
    seeds: int | None = None
    n_bins: int | None = None
    augmix: dict[str, bool] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    others: str | None = None
    confidence: str = "not checked against the paper"
    inferred: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    not_implemented: dict[str, str] = field(default_factory=dict)
    errata: tuple[dict[str, str], ...] = ()

    @property
    def numbers(self) -> pd.DataFrame:
        """The rows of :func:`published` of this paper."""
        found = published()
        return found[found["paper"] == self.name]

    def measured(self, method: str) -> str:
        """Return who measured a method's numbers."""
        own = any(part in self.own for part in method.split("+"))
        return "the authors' own" if own or self.others is None else self.others

    def mixes(self, dataset: str) -> bool | None:
        """Return whether the views of a data set are mixed by AugMix."""
        kind = "shift" if dataset in SHIFTS else "imagenet" if dataset == "imagenet" else "fine-grained"
        return self.augmix.get(kind)

    def describe(self, backbone: str, prompt: str) -> str:
        """Describe source and protocol in one sentence."""
        kinds = {"fine-grained": "fine-grained sets", "imagenet": "ImageNet", "shift": "shifts"}
        mixed = [f"{'on' if on else 'off'} for {kinds[kind]}" for kind, on in self.augmix.items()]
        stated = {"views": self.views, "seeds": self.seeds, "bins": self.n_bins}
        said = [backbone, f"prompt {prompt!r}"]
        said += [f"{value} {name}" for name, value in stated.items() if value is not None]
        said += [f"AugMix {', '.join(mixed)}"] if mixed else []
        missing = [name for name, value in {**stated, "AugMix": mixed or None}.items() if value is None]
        words = f"{self.source} ({self.confidence}): {', '.join(said)}"
        words += f"; inferred: {', '.join(self.inferred)}" if self.inferred else ""
        return f"{words}; not stated: {', '.join(missing)}." if missing else f"{words}."


_PAPERS = {name: Paper(name=name, **each) for name, each in _read_toml("papers.toml").items()}
PAPERS = tuple(_PAPERS)
"""Papers whose numbers are known."""


@cache
def published() -> pd.DataFrame:
    """Return all published numbers: paper, table, layout, backbone, prompt, dataset, method, metric, printed, value."""
    with resources.files("otpt.report").joinpath("published.csv").open(encoding="utf-8") as file:
        found = pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"value": "printed"})
    # Table 14 of the O-TPT paper prints "4..93"
    found["value"] = pd.to_numeric(found["printed"].str.replace("..", ".", regex=False), errors="coerce")
    return found


def get_paper(name: str) -> Paper:
    """Return a paper by name, one of :data:`PAPERS`."""
    check_names("paper", [name], PAPERS)
    return _PAPERS[name]


def paper_table(table: int | str, *, paper: str = OTPT, backbone: str | None = None) -> pd.DataFrame:
    """Return the rows of one table and backbone.

    >>> rows = paper_table(2).set_index(["method", "metric", "dataset"])
    >>> rows.loc[("o-tpt", "ece", "dtd"), "printed"]
    '7.88'
    """
    rows = get_paper(paper).numbers
    check_names("table of the paper", [str(table)], rows["table"])
    own = rows[rows["table"] == str(table)]
    backbones = check_names(f"backbone of Table {table}", [backbone] if backbone else None, own["backbone"])
    if len(backbones) > 1:
        raise OtptError(f"Table {table} has {' and '.join(backbones)}; choose a backbone.")
    return own[own["backbone"] == backbones[0]]


def layout_tables(layout: str, backbone: str | None = None) -> list[pd.DataFrame]:
    """Return the O-TPT paper's tables of a layout, optionally for one backbone."""
    rows = get_paper(OTPT).numbers
    own = rows[rows["layout"] == layout]
    if backbone is not None:
        own = own[(own["backbone"] == backbone) | ~own["backbone"].isin(BACKBONES)]
    return [table for _, table in own.groupby(["table", "backbone"], sort=False)]


def table_datasets(table: pd.DataFrame) -> list[str]:
    """Return the data sets of a table, without the average."""
    return [name for name in dict.fromkeys(table["dataset"]) if name != AVERAGE]


def method_key(name: str) -> frozenset[str]:
    """Return the parts of a method's name as a set, with abbreviations expanded.

    >>> method_key("tpt+e-cots") == method_key("weak-strong+tpt+cots")
    True
    >>> method_key("zero-shot+weak-strong") == method_key("weak-strong")
    True
    """
    parts = {each for part in name.split("+") for each in _ALIASES.get(part, (part,))}
    return frozenset(parts - {"zero-shot"} or parts)


def printed_values(
    cells: pd.DataFrame, printed: pd.DataFrame, datasets: Sequence[str], methods: Mapping[str, str] | None = None
) -> list[float]:
    """Return the printed number of each cell by data set, method and metric, or nan.

    An average that is not printed is the mean over ``datasets``. ``methods`` gives the paper's names of ours.
    """
    values = printed.set_index(["dataset", "method", "metric"])["value"].to_dict()

    def find(dataset: str, method: str, metric: str) -> float:
        found = values.get((dataset, method, metric), np.nan)
        if dataset == AVERAGE and np.isnan(found) and len(datasets):
            found = np.mean([find(name, method, metric) for name in datasets])
        return float(found)

    names = cells["method"] if methods is None else cells["method"].map(methods)
    return [find(*key) for key in zip(cells["dataset"], names, cells["metric"], strict=True)]


def mark_errata(
    cells: pd.DataFrame, printed: pd.DataFrame, methods: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Mark the averages of a table that contradict other numbers of the paper, with a note for each."""
    paper, table, backbone = printed[["paper", "table", "backbone"]].iloc[0]
    names = cells["method"] if methods is None else cells["method"].map(methods)
    wrong, notes = pd.Series(False, index=cells.index), []
    for each in get_paper(paper).errata:
        own = (cells["dataset"] == AVERAGE) & (cells["metric"] == each["metric"]) & (names == each["method"])
        if (each["table"], each["backbone"]) == (table, backbone) and own.any():
            wrong |= own
            what = f"{each['printed']} as average {metric_title(each['metric'])} of {method_title(each['method'])}"
            notes.append(f"! Table {table} prints {what}; {each['other']} is {each['reason']}.")
    return cells.assign(wrong=wrong), notes


def dataset_title(name: str) -> str:
    """Return the short title of a data set's column."""
    return str(_DATA["datasets"].get(name, name))


def method_title(name: str) -> str:
    """Title of a method in the paper; its name for other methods.

    >>> method_title("coop+o-tpt"), method_title("tda")
    ('CoOp + O-TPT', 'tda')
    """
    titles = _DATA["methods"]
    parts = [titles.get(part) for part in name.split("+")]
    return str(titles.get(name, " + ".join(parts) if all(parts) else name))


def metric_title(name: str) -> str:
    """Return the short title of a metric, or of its deviation over seeds."""
    if name.endswith(DEVIATION):
        return f"Std. {metric_title(name.removesuffix(DEVIATION))}"
    return get_metric(name).short


def layout_metrics(layout: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the metrics of a layout, or others by name or alias."""
    if names is None:
        return LAYOUTS[layout].metrics
    if layout in {"groups", "seeds"}:
        raise OtptError(f"The layout {layout!r} has accuracy and ECE only; choose metrics in another layout.")
    return tuple(dict.fromkeys(get_metric(name).name for name in names))


def layout_methods(results: Results, layout: str, names: Sequence[str] | None = None) -> list[str]:
    """Return the methods of the runs that a layout shows, in the paper's order, then in the runs'."""
    if names is not None:
        return check_names("method", names, results.methods)
    paper = list(dict.fromkeys(method for table in layout_tables(layout) for method in table["method"]))
    found = [method for method in paper if method in results.methods]
    others = [method for method in results.methods if method not in paper]
    found += [method for method in others if not LAYOUTS[layout].chosen or method.partition("+")[0] == layout]
    if not found:
        raise OtptError(
            f"The runs hold no method of the layout {layout!r} ({', '.join(paper)}); they hold "
            f"{', '.join(results.methods)}. Choose with --methods, or another layout."
        )
    return found


def layout_datasets(results: Results, layout: str, names: Sequence[str] | None = None) -> list[str]:
    """Return the data sets of the runs that a layout shows, in the paper's order, then in the runs'."""
    if names is not None:
        return check_names("data set", names, results.datasets)
    shifts, order = LAYOUTS[layout].shifts, list(_DATA["datasets"])
    is_shift = {
        name: name in SHIFTS if name in order else results.configs_of(name)[0].family == "shift"
        for name in results.datasets
    }
    found = [name for name in results.datasets if is_shift[name] == shifts]
    if not found:
        kind = "distribution shift" if shifts else "data set other than distribution shifts"
        raise OtptError(
            f"The runs hold no {kind}, which the layout {layout!r} shows; they hold "
            f"{', '.join(results.datasets)}. Choose with --datasets, or another layout."
        )
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def prompt_of(results: Results, dataset: str, method: str, wanted: str | None = None) -> str:
    """Return the prompt shown for a method on a data set: ``wanted``, its only prompt, or the paper's."""
    held = results.prompts_of(dataset, method)
    if wanted is not None or not held:
        return wanted or ""
    if len(held) == 1:
        return held[0]
    for words in dict.fromkeys(prompt for table in layout_tables("main") for prompt in table["prompt"]):
        if words in held:
            return str(words)
    raise OtptError(
        f"The runs hold {dataset!r} with {len(held)} prompts ({'; '.join(held[:5])}{' …' if len(held) > 5 else ''}); "
        "choose one with --prompt, or the layout 'prompts'."
    )


def choose(results: Results, datasets: Sequence[str], methods: Sequence[str], prompt: str | None = None) -> Results:
    """Select data sets and methods, each pair under one prompt; see :func:`prompt_of`."""
    parts = [
        results.select(dataset=dataset, method=method, prompt=prompt_of(results, dataset, method, prompt))
        for dataset in datasets
        for method in methods
    ]
    return results.narrow(pd.concat(parts), datasets, methods)


def plain_methods(methods: Sequence[str]) -> list[str]:
    """Return the methods that are not variants of a sweep."""
    return [name for name in methods if not _VARIANT.fullmatch(name)]


def swept_settings(methods: Sequence[str]) -> pd.DataFrame:
    """Return the sweep variants among methods with columns method, base, label, and one for each setting.

    >>> swept_settings(["tpt", "o-tpt[lambda=18]", "o-tpt[lambda=2]"])[["base", "label", "lambda"]]
        base label  lambda
    1  o-tpt   λ=2       2
    0  o-tpt  λ=18      18
    """
    found = []
    for method in methods:
        if match := _VARIANT.fullmatch(method):
            settings = dict(setting.split("=", 1) for setting in match["settings"].split(","))
            label = match["settings"].replace("lambda=", "λ=")
            found.append({"method": method, "base": match["base"], "label": label, **settings})
    keys = ["method", "base", "label"]
    frame = pd.DataFrame(found, columns=None if found else keys)
    for name in frame.columns.difference(keys):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            frame[name] = numbers
    bases = list(dict.fromkeys(frame["base"]))
    order = ["base", *(name for name in frame if name not in keys)]
    return frame.sort_values(order, key=lambda own: own.map(bases.index) if own.name == "base" else own)


def guess_backbone(results: Results) -> str | None:
    """Return the paper's name of the runs' backbone, or None."""
    names = {paper_backbone(run.config.backbone.architecture) for run in results.runs}
    return names.pop() if len(names) == 1 and names <= set(BACKBONES) else None


def paper_backbone(architecture: str) -> str:
    """Return an architecture's name in papers, such as "ViT-B/16" for "ViT-B-16-quickgelu"."""
    return re.sub(r"^(ViT-\w+)-(\d+)$", r"\1/\2", architecture.replace("-quickgelu", ""))
