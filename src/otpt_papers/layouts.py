"""Tables in the layouts of the O-TPT paper, with its printed numbers next to those of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from otpt.errors import OtptError
from otpt.report import Layout, Results, Selection, Table
from otpt.report.formats import FLAGS, KEYS, NUMBERS
from otpt.report.results import check_names
from otpt.report.selection import AVERAGE, choose, prompt_of
from otpt.report.tables import interval_note, make_cells, mark_best, progress_notes, uneven_notes, unmarked_cells
from otpt_papers.groups import SPLIT_BY, split_groups, splits_of
from otpt_papers.papers import (
    BACKBONES,
    OTPT,
    SHIFTS,
    get_paper,
    layout_tables,
    mark_errata,
    printed_values,
    table_datasets,
)
from otpt_papers.protocol import find_deviations
from otpt_papers.tables import NO_NUMBERS, NOTHING_AT_ALL, PaperTable
from otpt_papers.titles import DATASETS

PRINTED = "printed"
"""Column of the averages that a paper prints."""

_NO_TABLE = "The paper has no such table for this backbone and prompt."
_REMEDY = "choose one with --prompt, or the layout 'prompts'"


@dataclass(frozen=True)
class _Part:
    """What one table of a layout shows.

    Attributes:
        datasets: names of data sets, in order.
        methods: names of methods, in order.
        prompt: prompt of all methods; None where the runs have one.
        printed: the paper's table, if it is known already.
    """

    datasets: list[str]
    methods: list[str]
    prompt: str | None
    printed: pd.DataFrame | None = None


@dataclass(frozen=True)
class PaperLayout(Layout):
    """A form of the O-TPT paper's tables: lines of methods and metrics, columns of data sets, and their average.

    Attributes:
        name: name for ``otpt table --layout``, and in ``published.csv``.
        title: title of the tables.
        metrics: metrics, a line for each.
        chosen: whether only those methods are shown that the paper has there, or that start from what the layout is
            named after.
        shifts: whether the data sets are those of the family "shift"; else they are all others.
        needs: what its runs need besides the data sets.
    """

    has_average: ClassVar[bool] = True

    name: str
    title: str
    metrics: tuple[str, ...] = ("accuracy", "ece")
    chosen: bool = False
    shifts: bool = False
    needs: str = ""

    def tables(
        self,
        results: Results,
        selection: Selection,
        *,
        backbone: str | None = None,
        printed: pd.DataFrame | None = None,
    ) -> list[Table]:
        """Build the tables of the layout.

        Args:
            results: runs of one model.
            selection: what the tables show.
            backbone: backbone of the paper whose printed numbers are added; None for none.
            printed: the paper's table whose numbers are added; by default, the one of the layout that fits best.
        """
        self.check(results, selection)
        metrics = selection.metric_names(self.metrics)
        if printed is None:
            check_names("backbone of the paper", None if backbone is None else [backbone], BACKBONES)
        check_names("prompt", None if selection.prompt is None else [selection.prompt], results.prompts)
        methods = self.methods(results, selection.methods)
        tables: list[Table] = []
        parts = [part for part in self.parts(results, selection, methods) if part.datasets and part.methods]
        several_prompts = selection.prompt is None and len({part.prompt for part in parts}) > 1
        for part in parts:
            shown = part if printed is None else replace(part, printed=printed)
            table = self._table(results, shown, metrics, backbone, selection.level)
            if several_prompts and str(part.prompt) not in table.title:
                table = replace(table, title=f"{table.title}, prompt {part.prompt!r}")
            tables.append(table)
        return tables

    def check(self, results: Results, selection: Selection) -> None:
        """Raise :class:`OtptError` for a selection that the layout does not have."""

    def parts(self, results: Results, selection: Selection, methods: Sequence[str]) -> list[_Part]:
        """Return what each table shows: all, or what there is under each prompt if a method has several of them."""
        datasets = self.datasets(results, selection.datasets)
        columns = results.frame[results.frame["dataset"].isin(datasets) & results.frame["method"].isin(methods)]
        columns = columns.drop_duplicates(["dataset", "method", "prompt"])
        if selection.prompt is None and columns.duplicated(["dataset", "method"]).any():
            return [_prompt_part(results, datasets, methods, prompt) for prompt in columns["prompt"].unique()]
        return [_prompt_part(results, datasets, methods, selection.prompt)]

    def methods(self, results: Results, names: Sequence[str] | None = None) -> list[str]:
        """Return the methods of the runs that the layout shows, in the paper's order, then in the runs'."""
        if names is not None:
            return check_names("method", names, results.methods)
        of_paper = list(dict.fromkeys(method for table in layout_tables(self.name) for method in table["method"]))
        methods = [method for method in of_paper if method in results.methods]
        for method in results.methods:
            if method not in of_paper and (not self.chosen or method.partition("+")[0] == self.name):
                methods.append(method)
        if not methods:
            raise OtptError(
                f"The runs hold no method of the layout {self.name!r} ({', '.join(of_paper)}); they hold "
                f"{', '.join(results.methods)}. Choose with --methods, or another layout."
            )
        return methods

    def datasets(self, results: Results, names: Sequence[str] | None = None) -> list[str]:
        """Return the data sets of the runs that the layout shows, in the paper's order, then in the runs'."""
        if names is not None:
            return check_names("data set", names, results.datasets)
        datasets = [name for name in results.datasets if _is_shift(results, name) == self.shifts]
        if not datasets:
            kind = "distribution shift" if self.shifts else "data set other than distribution shifts"
            raise OtptError(
                f"The runs hold no {kind}, which the layout {self.name!r} shows; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets, or another layout."
            )
        order = list(DATASETS)
        return sorted(datasets, key=lambda name: order.index(name) if name in order else len(order))

    def printed_table(self, backbone: str, prompt: str | None, datasets: Sequence[str]) -> pd.DataFrame | None:
        """Return the paper's table of the layout; of Tables 9 and 10, both of SCE, the one that fits the data sets."""
        return _best_fit(layout_tables(self.name, backbone), datasets)

    def table_title(self, prompt: str | None) -> str:
        """Return the title of a table."""
        return self.title

    def _table(
        self, results: Results, part: _Part, metrics: Sequence[str], backbone: str | None, level: float | None
    ) -> PaperTable:
        """Build one table, with the printed numbers of a backbone if requested."""
        results = choose(results, part.datasets, part.methods, part.prompt, remedy=_REMEDY)
        groups: dict[str, Sequence[str]] = {dataset: [dataset] for dataset in results.datasets}
        if self.has_average:
            groups[AVERAGE] = results.datasets
        cells = make_cells(results, groups, metrics, level=level).assign(**NO_NUMBERS)
        notes = [*progress_notes(results), *uneven_notes(results)]
        table = PaperTable(self.name, self.table_title(part.prompt), cells, level=level)
        if backbone is not None:
            printed = (
                part.printed if part.printed is not None else self.printed_table(backbone, part.prompt, part.datasets)
            )
            if printed is None:
                notes.append(_NO_TABLE)
            else:
                cells, paper_notes = _join(results, cells, printed)
                notes += paper_notes
                table = replace(table, cells=cells, paper=str(printed["table"].iloc[0]))
        elif part.printed is not None:
            notes += get_paper(OTPT).remarks_on(str(part.printed["table"].iloc[0]))
        if level is not None:
            notes.append(interval_note(level))
        return replace(table, notes=tuple(notes))


class PromptsLayout(PaperLayout):
    """One table for each prompt of the runs."""

    def parts(self, results: Results, selection: Selection, methods: Sequence[str]) -> list[_Part]:
        """Return what the runs have under each prompt, or under the selected one."""
        datasets = self.datasets(results, selection.datasets)
        prompts = results.prompts if selection.prompt is None else [selection.prompt]
        return [_prompt_part(results, datasets, methods, prompt) for prompt in prompts]

    def printed_table(self, backbone: str, prompt: str | None, datasets: Sequence[str]) -> pd.DataFrame | None:
        """Return the paper's table of a prompt, whose number of tuned tokens may be another one."""
        words = None if prompt is None else prompt.partition(" (")[0]
        tables = layout_tables(self.name, backbone)
        return _best_fit([table for table in tables if table["prompt"].iloc[0] == words], datasets)

    def table_title(self, prompt: str | None) -> str:
        """Return the title with the prompt."""
        return f"{self.title}: {prompt!r}"


class SeedsLayout(PaperLayout):
    """Standard deviations over seeds."""

    def check(self, results: Results, selection: Selection) -> None:
        """Raise for one seed, metrics and intervals."""
        _check_plain(self.name, selection)
        if len(results.seeds) < 2:
            raise OtptError("The layout 'seeds' needs runs with two or more seeds; these have one.")


class ByTableLayout(PaperLayout):
    """One table for each of the paper's, whose runs may have different backbones."""

    mixes_models: ClassVar[bool] = True
    has_average: ClassVar[bool] = False

    def parts(self, results: Results, selection: Selection, methods: Sequence[str]) -> list[_Part]:
        """Return what the runs share with each table of the paper; selected data sets are in one table."""
        if selection.datasets is not None:
            return super().parts(results, selection, methods)
        parts = []
        for printed in layout_tables(self.name):
            datasets = [name for name in table_datasets(printed) if name in results.datasets]
            of_table = set(methods if selection.methods is not None else printed["method"])
            parts.append(_Part(datasets, [name for name in methods if name in of_table], selection.prompt, printed))
        if not any(part.datasets and part.methods for part in parts):
            raise OtptError(
                f"The runs hold no data set of the layout {self.name!r} with one of its methods; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets and --methods."
            )
        return parts


class GroupsLayout(PaperLayout):
    """Accuracy and ECE of images above and below a threshold of TPT's mean cosine similarity.

    There is one table for each data set and split, see :mod:`otpt_papers.groups`.
    """

    def check(self, results: Results, selection: Selection) -> None:
        """Raise for metrics and intervals."""
        _check_plain(self.name, selection)

    def tables(
        self,
        results: Results,
        selection: Selection,
        *,
        backbone: str | None = None,
        printed: pd.DataFrame | None = None,
    ) -> list[Table]:
        """Build the tables of all splits of the data sets; see :meth:`PaperLayout.tables`."""
        self.check(results, selection)
        check_names("backbone of the paper", None if backbone is None else [backbone], BACKBONES)
        check_names("prompt", None if selection.prompt is None else [selection.prompt], results.prompts)
        methods = self.methods(results, selection.methods)
        datasets = self.datasets(results, selection.datasets)
        check_names("method of the runs, which makes the groups", [SPLIT_BY], results.methods)
        tables: list[Table] = []
        for dataset in datasets:
            prompt = prompt_of(results, dataset, SPLIT_BY, selection.prompt, remedy=_REMEDY)
            with_prompt = [name for name in methods if prompt in results.prompts_of(dataset, name)]
            chosen = choose(results, [dataset], with_prompt, prompt)
            splits = splits_of(results, chosen.keys_of()[:1])
            notes = progress_notes(results)
            if len(splits) == 1:
                notes.append("The runs hold no method that adapts nothing, so there is no split at the initial value.")
            of_paper = printed
            if printed is None and backbone is not None:
                of_paper = self.printed_table(backbone, prompt, [dataset])
                if of_paper is None:
                    notes.append(_NO_TABLE)
            tables += [_group_table(chosen, dataset, split, of_paper, notes) for split in splits]
        return tables


def _check_plain(layout: str, selection: Selection) -> None:
    """Raise for metrics and intervals, which a layout does not have."""
    if selection.metrics is not None:
        raise OtptError(f"The layout {layout!r} has accuracy and ECE only; choose metrics in another layout.")
    if selection.level is not None:
        raise OtptError(f"The layout {layout!r} has no intervals; leave out --intervals, or choose another layout.")


def _prompt_part(results: Results, datasets: Sequence[str], methods: Sequence[str], prompt: str | None) -> _Part:
    """Return what the runs have under a prompt."""
    scores = results.select(prompt=prompt)
    with_prompt = [name for name in datasets if name in set(scores["dataset"])]
    return _Part(with_prompt, [name for name in methods if name in set(scores["method"])], prompt)


def _best_fit(tables: Sequence[pd.DataFrame], datasets: Sequence[str]) -> pd.DataFrame | None:
    """Return the table with exactly these data sets, or else the first one with the most data sets; or None."""
    for table in tables:
        if set(table_datasets(table)) == set(datasets):
            return table
    return max(tables, key=lambda table: len(table_datasets(table)), default=None)


def _is_shift(results: Results, dataset: str) -> bool:
    if dataset in DATASETS:
        return dataset in SHIFTS
    return results.configs_of(dataset)[0].family == "shift"


def _join(results: Results, cells: pd.DataFrame, printed: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Join the cells of a table with the paper's numbers; return them with notes on what differs.

    The paper's average is the mean of its values of the same data sets. What it prints as average has a column of its
    own, if the data sets are those of the paper. Data sets with other images or classes have no numbers.
    """
    paper = get_paper(OTPT)
    deviations = find_deviations(results, paper, printed)
    registered = printed[~printed["dataset"].isin(deviations.strange)]
    plain = registered[registered["dataset"] != AVERAGE]
    cells = cells.assign(paper=printed_values(cells, plain, results.datasets))
    averages = cells[cells["dataset"] == AVERAGE].assign(**NOTHING_AT_ALL)
    errata: list[str] = []
    if len(averages) and set(results.datasets) == set(table_datasets(registered)):
        averages["paper"] = printed_values(averages, printed, [])
        averages, errata = mark_errata(averages, printed)
        cells = pd.concat([cells, averages.assign(dataset=PRINTED)], ignore_index=True)
    cells = cells.assign(difference=deviations.difference(cells))
    return cells, [*deviations.notes, *errata, *paper.remarks_on(str(printed["table"].iloc[0]))]


def _group_table(
    results: Results, dataset: str, split: str, printed: pd.DataFrame | None, notes: Sequence[str]
) -> PaperTable:
    """Build the table of one data set split into groups, with the ``printed`` numbers if given."""
    frame = split_groups(results, dataset, split)
    groups = {name: [name] for name in dict.fromkeys(frame["dataset"])}
    cells = mark_best(unmarked_cells(results.narrow(frame, list(groups)), groups, ("accuracy", "ece")))
    cells = cells[[*KEYS, *NUMBERS, *FLAGS]].assign(deviation=np.nan, **NO_NUMBERS)
    number = None
    paper_notes: list[str] = []
    if printed is not None:
        paper = get_paper(OTPT)
        number = str(printed["table"].iloc[0])
        deviations = find_deviations(results, paper, printed)
        if dataset not in deviations.strange:
            cells = cells.assign(paper=printed_values(cells, printed, []))
        comparable = not deviations.other_model and dataset not in deviations.other_images
        cells = cells.assign(difference=cells["value"] - cells["paper"] if comparable else np.nan)
        paper_notes = [*deviations.notes, *paper.remarks_on(number)]
    at_value = "its median" if split == "median" else "the initial prompt's value"
    title = f"{dataset}: images split by TPT's mean cosine similarity at {at_value}"
    sizes = "; ".join(_group_sizes(frame, dataset, results.methods[0]))
    notes = [*notes, f"Sizes of the groups: {sizes}.", *paper_notes]
    return PaperTable("groups", title, cells, notes=tuple(notes), paper=number)


def _group_sizes(frame: pd.DataFrame, dataset: str, method: str) -> Iterator[str]:
    """Yield the sizes of the groups and the threshold of each seed."""
    by_seed = frame[frame["method"] == method].pivot(index=["variant", "seed"], columns="dataset")
    sizes = (by_seed["images", f"{dataset}:group {number}"] for number in (1, 2))
    for above, below, threshold in zip(*sizes, by_seed["threshold", dataset], strict=True):
        yield f"{above} above and {below} below {threshold:.4f}"


_ALL = (
    PaperLayout("main", "Accuracy and calibration"),
    PaperLayout("shifts", "Accuracy and calibration under distribution shift", shifts=True),
    PaperLayout("sce", "Static calibration error", metrics=("sce",)),
    PromptsLayout("prompts", "Other prompts"),
    SeedsLayout("seeds", "Standard deviation over seeds", metrics=("accuracy_deviation", "ece_deviation")),
    GroupsLayout("groups", "Images split by TPT's mean cosine similarity"),
    PaperLayout("householder", "O-TPT with and without Householder", chosen=True),
    PaperLayout("combination", "O-TPT and C-TPT together", chosen=True),
    PaperLayout(
        "coop",
        "From CoOp's learned context",
        chosen=True,
        needs="CoOp's checkpoint: 'otpt evaluate --methods coop+tpt coop+o-tpt … --set context=FILE'",
    ),
    PaperLayout(
        "maple",
        "From MaPLe's learned prompts",
        chosen=True,
        needs="MaPLe's checkpoint: 'otpt evaluate --methods maple+tpt maple+o-tpt --set context=FILE'",
    ),
    ByTableLayout(
        "medical",
        "Medical data sets",
        chosen=True,
        needs="medical data and models: 'otpt train baple' and 'otpt train fpt', then 'otpt evaluate --methods baple "
        "baple+o-tpt --set trained=FILE;FILE'; 'otpt evaluate --methods promptsmooth promptsmooth+o-tpt'",
    ),
)
MAIN = "main"
"""The layout of those who name none."""
LAYOUTS: dict[str, PaperLayout] = {layout.name: layout for layout in _ALL}
"""Layouts of the O-TPT paper's tables, by name."""
