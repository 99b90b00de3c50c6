"""Layouts of tables, and published numbers that can stand next to results.

A layout makes tables of results; "plain" is built in. A reference joins them with numbers from elsewhere. Installed
packages register others, see :mod:`otpt.plugins`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from otpt.errors import OtptError, unknown
from otpt.metrics import get_metric
from otpt.metrics.bootstrap import check_level
from otpt.plugins import PLUGINS, load_installed_plugins, restorable
from otpt.report.formats import Table
from otpt.report.results import Results, check_names
from otpt.report.selection import all_groups, choose
from otpt.report.tables import interval_note, make_cells, progress_notes, uneven_notes

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
        chosen = choose(results, datasets, methods, selection.prompt)
        cells = make_cells(chosen, all_groups(chosen), metrics, level=selection.level)
        notes = [*progress_notes(chosen), *uneven_notes(chosen)]
        if selection.level is not None:
            notes.append(interval_note(selection.level))
        return [Table("plain", "Accuracy and calibration", cells, notes=tuple(notes), level=selection.level)]


_LAYOUTS: dict[str, Layout] = restorable({"plain": PlainLayout()})
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
