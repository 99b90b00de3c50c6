"""The layouts of the paper's tables: which metrics, which methods and data sets, in which order, under which titles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.metrics import METRICS
from otpt.report.names import check_names
from otpt.report.papers.paper import SHIFTS, layout_tables

if TYPE_CHECKING:
    from otpt.report.results import Results

DATASET_TITLES = {
    "imagenet": "INet",
    "dtd": "DTD",
    "flowers102": "FLW",
    "food101": "Food",
    "sun397": "SUN",
    "aircraft": "Air",
    "pets": "Pets",
    "caltech101": "Calt",
    "ucf101": "UCF",
    "eurosat": "SAT",
    "cars": "Car",
    "imagenet-a": "I-A",
    "imagenet-v2": "I-V2",
    "imagenet-r": "I-R",
    "imagenet-sketch": "I-S",
    "covid:backdoor": "Covid(BA)",
    "covid": "Covid(CA)",
    "isic2018": "ISIC'18",
    "kather-500": "KC",
    "kather": "KC (all)",
}
"""In the order of the paper's columns; the shifts are those of ImageNet."""

METHOD_TITLES = {
    "zero-shot": "Zero-shot",
    "tpt": "TPT",
    "c-tpt": "C-TPT",
    "c-tpt+sals": "Robust-adapt SaLS + C-TPT",
    "c-tpt+penalty": "Robust-adapt Penalty + C-TPT",
    "c-tpt+zs": "Robust-adapt ZS + C-TPT",
    "o-tpt": "O-TPT",
    "o-tpt-rows": "O-TPT without Householder",
    "o-tpt+c-tpt": "O-TPT + C-TPT",
    "coop": "CoOp",
    "coop+tpt": "CoOp + TPT",
    "coop+c-tpt": "CoOp + C-TPT",
    "coop+o-tpt": "CoOp + O-TPT",
    "cocoop": "CoCoOp",
    "cocoop+tpt": "CoCoOp + TPT",
    "cocoop+c-tpt": "CoCoOp + C-TPT",
    "cocoop+o-tpt": "CoCoOp + O-TPT",
    "maple": "MaPLe",
    "maple+tpt": "MaPLe + TPT",
    "maple+c-tpt": "MaPLe + C-TPT",
    "maple+o-tpt": "MaPLe + O-TPT",
    "baple": "BAPLe",
    "baple+o-tpt": "BAPLe + O-TPT",
    "fpt": "FPT",
    "fpt+o-tpt": "FPT + O-TPT",
    "promptsmooth": "PromptSmooth",
    "promptsmooth+o-tpt": "PromptSmooth + O-TPT",
}

METRIC_TITLES = {
    **{name: metric.short for name, metric in METRICS.items() if metric.best and metric.unit == "%"},
    "accuracy_deviation": "Std. Acc.",
    "ece_deviation": "Std. ECE",
}

DEVIATION = "_deviation"
"""Ends the name of a metric's standard deviation over seeds."""


@dataclass(frozen=True)
class Layout:
    """One form of table.

    Attributes:
        metrics: a line for each.
        chosen: shows only the methods that the paper has there and those that start from what the layout is named
            after, in place of all methods of the runs.
        shifts: for data sets of the family "shift", or for all others.
        average: ends with the average over the data sets.
    """

    name: str
    title: str
    metrics: tuple[str, ...] = ("accuracy", "ece")
    chosen: bool = False
    shifts: bool = False
    average: bool = True

    def with_metrics(self, names: Sequence[str] | None) -> Layout:
        """The layout with lines for other metrics, all of which are fractions; None leaves its own."""
        if names is None:
            return self
        if self.name in {"groups", "seeds"}:
            raise OtptError(f"The layout {self.name!r} has accuracy and ECE only; choose metrics in another layout.")
        check_names("metric of a table", names, [name for name in METRIC_TITLES if not name.endswith(DEVIATION)])
        return replace(self, metrics=tuple(dict.fromkeys(names)))

    def methods_of(self, results: Results, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
        """The methods of the runs that the layout shows, in the paper's order, then in the runs'."""
        if wanted is not None:
            return wanted_of("method", wanted, results.methods)
        paper = tuple(dict.fromkeys(method for table in layout_tables(self.name, None) for method in table.methods))
        found = [method for method in paper if method in results.methods]
        others = [method for method in results.methods if method not in paper]
        found += [method for method in others if not self.chosen or method.partition("+")[0] == self.name]
        if not found:
            raise OtptError(
                f"The runs hold no method of the layout {self.name!r} ({', '.join(paper)}); they hold "
                f"{', '.join(results.methods)}. Choose with --methods, or another layout."
            )
        return tuple(found)

    def datasets_of(self, results: Results, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
        """The data sets of the runs that the layout shows, in the paper's order, then in the runs'."""
        if wanted is not None:
            return wanted_of("data set", wanted, results.datasets)
        found = [name for name in results.datasets if _is_shift(results, name) == self.shifts]
        if not found:
            kind = "distribution shift" if self.shifts else "data set other than distribution shifts"
            raise OtptError(
                f"The runs hold no {kind}, which the layout {self.name!r} shows; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets, or another layout."
            )
        return tuple(sorted(found, key=_paper_order))


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("main", "Accuracy and calibration"),
        Layout("shifts", "Accuracy and calibration under distribution shift", shifts=True),
        Layout("coop", "From CoOp's learned context", chosen=True),
        Layout("maple", "From MaPLe's learned prompts", chosen=True),
        Layout("medical", "Medical data sets", chosen=True, average=False),
        Layout("sce", "Static calibration error", ("sce",)),
        Layout("prompts", "Other prompts"),
        Layout("seeds", "Standard deviation over seeds", ("accuracy_deviation", "ece_deviation")),
        Layout("groups", "Images split by TPT's mean cosine similarity", average=False),
        Layout("householder", "O-TPT with and without Householder", chosen=True),
        Layout("combination", "O-TPT and C-TPT together", chosen=True),
    )
}
"""Layouts of the paper's tables, by name."""


def dataset_title(name: str) -> str:
    """The short title of a column."""
    return DATASET_TITLES.get(name, name)


def method_title(name: str) -> str:
    """The title of a method; its name where the paper has none."""
    return METHOD_TITLES.get(name, name)


def progress_note(results: Results) -> str:
    """Which runs are still in progress."""
    words = (f"{str(run.folder)!r} has {done} of {whole} images" for run, done, whole in results.partial)
    return f"… marks numbers of a run in progress: {'; '.join(words)}."


def _is_shift(results: Results, name: str) -> bool:
    if name in DATASET_TITLES:
        return name in SHIFTS
    return bool(results.config_of(name)["family"] == "shift")


def _paper_order(name: str) -> int:
    return list(DATASET_TITLES).index(name) if name in DATASET_TITLES else len(DATASET_TITLES)


def wanted_of(kind: str, wanted: Iterable[str], held: Sequence[str]) -> tuple[str, ...]:
    """The names that were asked for, each once; all must be among those that the runs hold."""
    names = tuple(dict.fromkeys(wanted))
    check_names(kind, names, held)
    if not names:
        raise OtptError(f"No {kind} was chosen; the runs hold {', '.join(held)}.")
    return names
