"""The layouts of the paper's tables, from ``layouts.toml``: metrics, methods and data sets, their order and titles."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.papers import SHIFTS, layout_tables
from otpt.report.results import Results, check_names

_VARIANT = re.compile(r"(?P<base>.+)\[(?P<settings>[^\[\]]+=[^\[\]]+)\]")
DEVIATION = "_deviation"
"""Ends the name of a metric's standard deviation over seeds."""


@dataclass(frozen=True)
class Layout:
    """A form of table; see ``layouts.toml``."""

    title: str
    metrics: tuple[str, ...] = ("accuracy", "ece")
    chosen: bool = False
    shifts: bool = False
    average: bool = True


_DATA = tomllib.loads(resources.files("otpt.report").joinpath("layouts.toml").read_text(encoding="utf-8"))
LAYOUTS = {name: Layout(**each) for name, each in _DATA["layouts"].items()}
"""Layouts of the paper's tables, by name."""


def dataset_title(name: str) -> str:
    """Short title of a data set's column."""
    return str(_DATA["datasets"].get(name, name))


def method_title(name: str) -> str:
    """Title of a method in the paper; its name for other methods.

    >>> method_title("coop+o-tpt"), method_title("tda")
    ('CoOp + O-TPT', 'tda')
    """
    titles, parts = _DATA["methods"], name.split("+")
    joined = " + ".join(titles[part] for part in parts) if all(part in titles for part in parts) else name
    return str(titles.get(name, joined))


def metric_title(name: str) -> str:
    """Short title of a metric, or of its deviation over seeds."""
    if name.endswith(DEVIATION):
        return f"Std. {metric_title(name.removesuffix(DEVIATION))}"
    return get_metric(name).short


def layout_metrics(layout: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """Metrics of a layout, or others by name or alias."""
    if names is None:
        return LAYOUTS[layout].metrics
    if layout in {"groups", "seeds"}:
        raise OtptError(f"The layout {layout!r} has accuracy and ECE only; choose metrics in another layout.")
    return tuple(dict.fromkeys(get_metric(name).name for name in names))


def layout_methods(results: Results, layout: str, names: Sequence[str] | None = None) -> list[str]:
    """Methods of the runs that a layout shows, in the paper's order, then in the runs'."""
    if names is not None:
        return selected("method", names, results.methods)
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
    """Data sets of the runs that a layout shows, in the paper's order, then in the runs'."""
    if names is not None:
        return selected("data set", names, results.datasets)
    shifts = LAYOUTS[layout].shifts
    found = [name for name in results.datasets if _is_shift(results, name) == shifts]
    if not found:
        kind = "distribution shift" if shifts else "data set other than distribution shifts"
        raise OtptError(
            f"The runs hold no {kind}, which the layout {layout!r} shows; they hold "
            f"{', '.join(results.datasets)}. Choose with --datasets, or another layout."
        )
    order = list(_DATA["datasets"])
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def prompt_of(results: Results, dataset: str, method: str, wanted: str | None = None) -> str:
    """The prompt under which a method is shown on a data set: the one wanted, its only one, or the paper's."""
    held = results.prompts_of(dataset, method)
    if wanted is not None or not held:
        return wanted or ""
    if len(held) == 1:
        return held[0]
    for table in layout_tables("main"):
        if table["prompt"].iloc[0] in held:
            return str(table["prompt"].iloc[0])
    raise OtptError(
        f"The runs hold {dataset!r} with {len(held)} prompts ({'; '.join(held[:5])}{' …' if len(held) > 5 else ''}); "
        "choose one with --prompt, or the layout 'prompts'."
    )


def selected(kind: str, names: Iterable[str], held: Sequence[str]) -> list[str]:
    """The names, each once; all must be among those that the runs hold."""
    found = list(dict.fromkeys(names))
    check_names(kind, found, held)
    if not found:
        raise OtptError(f"No {kind} was chosen; the runs hold {', '.join(held)}.")
    return found


def _is_shift(results: Results, name: str) -> bool:
    if name in _DATA["datasets"]:
        return name in SHIFTS
    return bool(results.config_of(name)["family"] == "shift")


def plain_methods(methods: Sequence[str]) -> list[str]:
    """Methods that are not variants of a sweep."""
    return [name for name in methods if not _VARIANT.fullmatch(name)]


def swept_settings(methods: Sequence[str]) -> pd.DataFrame:
    """Variants among methods: columns method, base, label, and one for each setting, sorted by their values.

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
    frame = pd.DataFrame(found, columns=None if found else ["method", "base", "label"])
    names = [name for name in frame if name not in {"method", "base", "label"}]
    for name in names:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            frame[name] = numbers
    return (
        frame.sort_values(
            ["base", *names], key=lambda own: own if own.name != "base" else own.map(list(dict.fromkeys(own)).index)
        )
        if names
        else frame
    )
