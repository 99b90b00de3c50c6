"""The layouts of the paper's tables as data: metrics, methods and data sets, their order and titles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.papers import SHIFTS, layout_tables
from otpt.report.results import Results, check_names

DATASET_TITLES = {
    "imagenet": "INet", "dtd": "DTD", "flowers102": "FLW", "food101": "Food", "sun397": "SUN", "aircraft": "Air",
    "pets": "Pets", "caltech101": "Calt", "ucf101": "UCF", "eurosat": "SAT", "cars": "Car",
    "imagenet-a": "I-A", "imagenet-v2": "I-V2", "imagenet-r": "I-R", "imagenet-sketch": "I-S",
    "covid:backdoor": "Covid(BA)", "covid": "Covid(CA)", "isic2018": "ISIC'18", "kather-500": "KC",
    "kather": "KC (all)", "average": "Avg", "printed": "printed Avg",
}  # fmt: skip
"""In the order of the paper's columns; the shifts are those of ImageNet."""

_PARTS = {
    "zero-shot": "Zero-shot", "tpt": "TPT", "c-tpt": "C-TPT", "o-tpt": "O-TPT", "coop": "CoOp", "cocoop": "CoCoOp",
    "maple": "MaPLe", "baple": "BAPLe", "fpt": "FPT", "promptsmooth": "PromptSmooth",
}  # fmt: skip
_METHOD_TITLES = {
    "c-tpt+sals": "Robust-adapt SaLS + C-TPT",
    "c-tpt+penalty": "Robust-adapt Penalty + C-TPT",
    "c-tpt+zs": "Robust-adapt ZS + C-TPT",
    "o-tpt-rows": "O-TPT without Householder",
}

DEVIATION = "_deviation"
"""Ends the name of a metric's standard deviation over seeds."""


@dataclass(frozen=True)
class Layout:
    """A form of table.

    Attributes:
        metrics: a line for each.
        chosen: show only the methods that the paper has there and those that start from what the layout is named
            after, in place of all methods of the runs.
        shifts: for data sets of the family "shift", or for all others.
        average: end with the average over the data sets.
    """

    title: str
    metrics: tuple[str, ...] = ("accuracy", "ece")
    chosen: bool = False
    shifts: bool = False
    average: bool = True


LAYOUTS = {
    "main": Layout("Accuracy and calibration"),
    "shifts": Layout("Accuracy and calibration under distribution shift", shifts=True),
    "coop": Layout("From CoOp's learned context", chosen=True),
    "maple": Layout("From MaPLe's learned prompts", chosen=True),
    "medical": Layout("Medical data sets", chosen=True, average=False),
    "sce": Layout("Static calibration error", ("sce",)),
    "prompts": Layout("Other prompts"),
    "seeds": Layout("Standard deviation over seeds", ("accuracy_deviation", "ece_deviation")),
    "groups": Layout("Images split by TPT's mean cosine similarity", average=False),
    "householder": Layout("O-TPT with and without Householder", chosen=True),
    "combination": Layout("O-TPT and C-TPT together", chosen=True),
}
"""Layouts of the paper's tables, by name."""


def dataset_title(name: str) -> str:
    """Short title of a data set's column."""
    return DATASET_TITLES.get(name, name)


def method_title(name: str) -> str:
    """Title of a method in the paper; its name for other methods.

    >>> method_title("coop+o-tpt"), method_title("tda")
    ('CoOp + O-TPT', 'tda')
    """
    parts = name.split("+")
    if name in _METHOD_TITLES or any(part not in _PARTS for part in parts):
        return _METHOD_TITLES.get(name, name)
    return " + ".join(_PARTS[part] for part in parts)


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
    order = list(DATASET_TITLES)
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
    if name in DATASET_TITLES:
        return name in SHIFTS
    return bool(results.config_of(name)["family"] == "shift")
