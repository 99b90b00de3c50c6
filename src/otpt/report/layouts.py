"""Layouts of tables, and published numbers that can stand next to results.

A layout makes tables of results; "plain" is built in. A reference joins them with numbers from elsewhere. Installed
packages register others, see :mod:`otpt.plugins`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import pandas as pd

from otpt.errors import OtptError, unknown
from otpt.metrics import METRICS, get_metric
from otpt.metrics.bootstrap import check_level
from otpt.plugins import PLUGINS, load_installed_plugins, restorable
from otpt.report.formats import FLAGS, KEYS, NUMBERS, Table, number_text
from otpt.report.results import Results, check_names
from otpt.report.selection import all_groups, by_prompt, choose, plain_methods, swept_settings
from otpt.report.tables import interval_note, make_cells, mark_cells, progress_notes, uneven_notes, unmarked_cells

_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Selection:
    """What tables show; None leaves it to the layout.

    Attributes:
        datasets: names of data sets, in the order of the table.
        methods: names of methods, in the order of the table.
        metrics: names or aliases of metrics.
        prompt: prompt of all methods, where the runs have several.
        level: confidence level of the bootstrap intervals; None omits them.
    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    prompt: str | None = None
    level: float | None = None

    def __post_init__(self) -> None:
        if self.level is not None:
            check_level(self.level)

    def metric_names(self, default: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the selected metrics, without repetitions, or the default."""
        if self.metrics is None:
            return tuple(default)
        return tuple(dict.fromkeys(get_metric(name).name for name in self.metrics))


class Layout(ABC):
    """A form of tables.

    Attributes:
        mixes_models: whether runs of different models may share its tables.
    """

    mixes_models: ClassVar[bool] = False

    @abstractmethod
    def tables(self, results: Results, selection: Selection) -> list[Table]:
        """Return the tables of results; raise :class:`~otpt.errors.OtptError` if they have nothing to show."""


class Reference(ABC):
    """Numbers from elsewhere that can stand next to results, such as those of a paper."""

    @abstractmethod
    def tables(
        self,
        results: Results,
        selection: Selection,
        *,
        layout: str | None = None,
        backbone: str | None = None,
        number: str | None = None,
    ) -> list[Table]:
        """Return tables of results with the reference's numbers.

        Args:
            results: runs of one model.
            selection: what the tables show.
            layout: name of the layout; None for the default.
            backbone: name of the backbone whose numbers are shown, as the reference calls it; None for that of the
                runs.
            number: number or name of one of the reference's tables; None for those that share numbers.

        Raises:
            OtptError: if the results and the reference share no number.
        """


class PlainLayout(Layout):
    """Methods by data sets with averages, named as in the runs."""

    metrics = ("accuracy", "ece")

    def tables(self, results: Results, selection: Selection) -> list[Table]:
        """Return one table of all selected methods and data sets."""
        metrics = selection.metric_names(self.metrics)
        check_names("prompt", None if selection.prompt is None else [selection.prompt], results.prompts)
        datasets = check_names("data set", selection.datasets, results.datasets)
        methods = check_names("method", selection.methods, results.methods)
        in_datasets = results.frame["dataset"].isin(datasets)
        is_shown = in_datasets & results.frame["method"].isin(methods)
        if selection.prompt is not None:
            is_shown &= results.frame["prompt"] == selection.prompt
        chosen = results.narrow(results.frame[is_shown], datasets, methods)
        parts = by_prompt(chosen)
        groups = all_groups(chosen)
        cells = pd.concat([unmarked_cells(part, groups, metrics, level=selection.level) for part in parts])
        cells = mark_cells(cells.reset_index(drop=True))[[*KEYS, *NUMBERS, *FLAGS]]
        notes = [*progress_notes(chosen), *uneven_notes(chosen)]
        if selection.level is not None:
            notes.append(interval_note(selection.level))
        rows = ("method", "prompt", "metric") if len(parts) > 1 else ("method", "metric")
        return [Table("plain", "Accuracy and calibration", cells, rows, notes=tuple(notes), level=selection.level)]


class SweepLayout(Layout):
    """The values of a sweep: one setting as lines, the other one or the metrics as columns."""

    metrics = ("accuracy", "ece")

    def tables(self, results: Results, selection: Selection) -> list[Table]:
        """Return a table of each swept method and data set, for two settings one of each metric."""
        metrics = selection.metric_names(self.metrics)
        datasets = check_names("data set", selection.datasets, results.datasets)
        methods = check_names("method", selection.methods, results.methods)
        swept = swept_settings(methods)
        settings = [name for name in swept if name not in ("method", "base", "label") and swept[name].nunique() > 1]
        if not settings:
            raise OtptError("The runs hold no sweep; make one with 'otpt sweep … --sweep views=8,32 lambda=1,6,18'.")
        chosen = choose(results, datasets, list(swept["method"]), selection.prompt)
        cells = make_cells(chosen, all_groups(chosen), metrics, level=selection.level)
        baselines = _baselines(results, datasets, plain_methods(methods), metrics, selection.prompt)
        notes = [*progress_notes(chosen), *([interval_note(selection.level)] if selection.level is not None else [])]
        tables: list[Table] = []
        row, column, *further = [*settings, ""] if len(settings) == 1 else settings
        for keys, variants in swept.groupby(["base", *further], sort=False, dropna=False):
            shown = [name for name in (row, column) if name]
            named = cells.merge(variants.dropna(subset=shown), on="method").sort_values(shown)
            held_fixed = zip(further, keys[1:], strict=True)
            fixed = [keys[0], *(f"{name}={_value_text(value)}" for name, value in held_fixed if pd.notna(value))]
            for dataset, of_dataset in named.groupby("dataset", sort=False):
                title = f"{', '.join(map(str, fixed))} on {dataset}"
                of_baselines = baselines.get(str(dataset), [])
                lines = of_dataset.assign(**{name: of_dataset[name].map(_value_text) for name in settings})
                if not column:
                    tables.append(
                        Table("sweep", title, lines, (row,), "metric", (*notes, *of_baselines), selection.level)
                    )
                    continue
                for metric in metrics:
                    of_metric = lines[lines["metric"] == metric].assign(**{column: f"{column}=" + lines[column]})
                    heading = f"{METRICS[metric].heading}, {title}"
                    marks = (*notes, *(note for note in of_baselines if note.startswith(METRICS[metric].heading)))
                    tables.append(Table("sweep", heading, of_metric, (row,), column, marks, selection.level))
        return tables


def _baselines(
    results: Results, datasets: Sequence[str], methods: Sequence[str], metrics: Sequence[str], prompt: str | None
) -> dict[str, list[str]]:
    """Return notes on each metric of the methods that are not swept, by data set."""
    if not methods:
        return {}
    chosen = choose(results, datasets, methods, prompt)
    cells = make_cells(chosen, all_groups(chosen), metrics)
    notes: dict[str, list[str]] = {}
    for (dataset, metric), column in cells.groupby(["dataset", "metric"], sort=False):
        words = [f"{cell['method']} {number_text(cell)}" for cell in column.to_dict("records")]
        notes.setdefault(dataset, []).append(f"{METRICS[metric].heading} of {', '.join(words)}.")
    return notes


def _value_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


_LAYOUTS: dict[str, Layout] = restorable({"plain": PlainLayout(), "sweep": SweepLayout()})
_REFERENCES: dict[str, Reference] = restorable({})
_DEFAULTS: dict[str, str] = restorable({"layout": "plain"})


def register_layout(name: str, layout: Layout, *, default: bool = False) -> None:
    """Register a layout.

    Args:
        name: name for :func:`get_layout` and ``otpt table --layout``.
        layout: layout that makes the tables.
        default: whether it is the layout of those who name none.
    """
    _register("layout", _LAYOUTS, name, layout, default)


def register_reference(name: str, reference: Reference, *, default: bool = False) -> None:
    """Register numbers from elsewhere.

    Args:
        name: name for :func:`get_reference` and ``otpt table --paper``.
        reference: numbers that can be joined with results.
        default: whether they are the numbers of those who name none.
    """
    _register("paper", _REFERENCES, name, reference, default)


def get_layout(name: str | None = None) -> Layout:
    """Return a layout by name, or the default one."""
    return _get("layout", _LAYOUTS, name)


def get_reference(name: str | None = None) -> Reference:
    """Return a reference by name, or the default one."""
    return _get("paper", _REFERENCES, name)


def _register(kind: str, registry: dict[str, _Entry], name: str, entry: _Entry, default: bool) -> None:
    registry[name] = entry
    if default:
        _DEFAULTS[kind] = name


def _get(kind: str, registry: Mapping[str, _Entry], name: str | None) -> _Entry:
    """Return an entry by name, or the default, after importing the installed plugins."""
    load_installed_plugins("reports")
    if not registry:
        raise OtptError(
            f"No {kind} is registered; expected an installed package with entry points of '{PLUGINS}.reports'. Those "
            "of otpt itself are found after 'pip install otpt'."
        )
    if name is None:
        name = _DEFAULTS.get(kind, next(iter(registry)))
    if name not in registry:
        raise unknown(kind, name, registry)
    return registry[name]


def build_tables(
    results: Results,
    layout: str | None = None,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    prompt: str | None = None,
    level: float | None = None,
) -> list[Table]:
    """Build the tables of a layout.

    Args:
        results: runs of one model.
        layout: name of a registered layout; None for the default.
        datasets: names of data sets, in the order of the table; None for those of the layout.
        methods: names of methods, in the order of the table; None for those of the layout.
        metrics: names or aliases of metrics; None for those of the layout.
        prompt: prompt of all methods, where the runs have several; None for the default prompt.
        level: confidence level of the bootstrap intervals; None omits them.

    Returns:
        The tables; most layouts give one.
    """
    selection = Selection(datasets, methods, metrics, prompt, level)
    return get_layout(layout).tables(results, selection)
