"""Tables in the layouts of the O-TPT paper, with its printed numbers next to ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.metrics.bootstrap import check_level
from otpt.report.formats import Table
from otpt.report.papers import (
    BACKBONES,
    LAYOUTS,
    SHIFTS,
    layout_tables,
    mark_errata,
    own_note,
    printed_values,
    table_datasets,
)
from otpt.report.results import Results, check_names
from otpt.report.rows import SPLIT_BY, SPLITS, init_cosine, split_groups
from otpt.report.selection import AVERAGE, choose, prompt_of
from otpt.report.tables import EMPTY, make_cells, progress_notes
from otpt.report.titles import DATASETS

PRINTED = "printed"
"""Column of the averages that a paper prints."""

_NO_TABLE = "The paper has no such table for this backbone and prompt."


@dataclass(frozen=True)
class _Part:
    """What one table of a layout shows.

    Attributes:
        prompt: of all methods; None where the runs have one.
        printed: the paper's table, if it is known already.
    """

    datasets: list[str]
    methods: list[str]
    prompt: str | None
    printed: pd.DataFrame | None = None


@dataclass(frozen=True)
class _Form:
    """How the tables of a layout are made.

    Attributes:
        backbone: backbone whose printed numbers are added; None for none.
        level: confidence level of the bootstrap intervals; None omits them.
    """

    layout: str
    metrics: tuple[str, ...]
    backbone: str | None
    level: float | None


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
    """Build the tables of a layout.

    Most layouts give one table; "prompts" gives one per prompt, "groups" one per data set and split.

    Args:
        results: runs of one model.
        layout: a key of :data:`otpt.report.LAYOUTS`.
        datasets, methods, metrics: names in the order of the table; None for those of the layout.
        prompt: prompt where the runs have several; None for the paper's.
        paper: backbone whose printed numbers are added, None for none.
        level: confidence level of the bootstrap intervals; None omits them.
    """
    check_names("layout", [layout], LAYOUTS)
    chosen_metrics = layout_metrics(layout, metrics)
    check_names("backbone of the paper", None if paper is None else [paper], BACKBONES)
    check_names("prompt", None if prompt is None else [prompt], results.prompts)
    if level is not None:
        check_level(level)
    chosen_methods = layout_methods(results, layout, methods)
    if layout == "seeds" and len(results.seeds) < 2:
        raise OtptError("The layout 'seeds' needs runs with two or more seeds; these have one.")
    if LAYOUTS[layout].by_table and datasets is None:
        parts = list(_printed_parts(results, layout, chosen_methods, prompt, all_methods=methods is not None))
        if not any(part.datasets and part.methods for part in parts):
            raise OtptError(
                f"The runs hold no data set of the layout {layout!r} with one of its methods; they hold "
                f"{', '.join(results.datasets)}. Choose with --datasets and --methods."
            )
    else:
        chosen_datasets = layout_datasets(results, layout, datasets)
        if layout == "groups":
            return _group_tables(results, _Part(chosen_datasets, chosen_methods, prompt), paper)
        prompts = results.prompts if layout == "prompts" and prompt is None else [prompt]
        parts = [_prompt_part(results, chosen_datasets, chosen_methods, words) for words in prompts]
    form = _Form(layout, chosen_metrics, paper, None if layout == "seeds" else level)
    return [_table(results, part, form) for part in parts if part.datasets and part.methods]


def _printed_parts(
    results: Results, layout: str, methods: Sequence[str], prompt: str | None, *, all_methods: bool
) -> Iterator[_Part]:
    """Yield what the runs share with each table of the paper."""
    for printed in layout_tables(layout):
        datasets = [name for name in table_datasets(printed) if name in results.datasets]
        shown = [name for name in methods if all_methods or name in set(printed["method"])]
        yield _Part(datasets, shown, prompt, printed)


def _prompt_part(results: Results, datasets: Sequence[str], methods: Sequence[str], prompt: str | None) -> _Part:
    """Return what the runs have under a prompt."""
    scores = results.select(prompt=prompt)
    with_prompt = [name for name in datasets if name in set(scores["dataset"])]
    return _Part(with_prompt, [name for name in methods if name in set(scores["method"])], prompt)


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
    of_paper = list(dict.fromkeys(method for table in layout_tables(layout) for method in table["method"]))
    methods = [method for method in of_paper if method in results.methods]
    for method in results.methods:
        if method not in of_paper and (not LAYOUTS[layout].chosen or method.partition("+")[0] == layout):
            methods.append(method)
    if not methods:
        raise OtptError(
            f"The runs hold no method of the layout {layout!r} ({', '.join(of_paper)}); they hold "
            f"{', '.join(results.methods)}. Choose with --methods, or another layout."
        )
    return methods


def layout_datasets(results: Results, layout: str, names: Sequence[str] | None = None) -> list[str]:
    """Return the data sets of the runs that a layout shows, in the paper's order, then in the runs'."""
    if names is not None:
        return check_names("data set", names, results.datasets)
    wants_shifts = LAYOUTS[layout].shifts
    datasets = [name for name in results.datasets if _is_shift(results, name) == wants_shifts]
    if not datasets:
        kind = "distribution shift" if wants_shifts else "data set other than distribution shifts"
        raise OtptError(
            f"The runs hold no {kind}, which the layout {layout!r} shows; they hold "
            f"{', '.join(results.datasets)}. Choose with --datasets, or another layout."
        )
    order = list(DATASETS)
    return sorted(datasets, key=lambda name: order.index(name) if name in order else len(order))


def _is_shift(results: Results, dataset: str) -> bool:
    if dataset in DATASETS:
        return dataset in SHIFTS
    return results.configs_of(dataset)[0].family == "shift"


def _table(results: Results, part: _Part, form: _Form) -> Table:
    """Build a table of a layout, with the printed numbers of a backbone if requested."""
    results = choose(results, part.datasets, part.methods, part.prompt)
    layout, datasets, printed = LAYOUTS[form.layout], results.datasets, part.printed
    groups: dict[str, Sequence[str]] = {dataset: [dataset] for dataset in datasets}
    if layout.average:
        groups[AVERAGE] = datasets
    cells = make_cells(results, groups, form.metrics, level=form.level)
    notes = [*progress_notes(results), *_uneven(results)]
    number = None
    if form.backbone is not None and printed is None:
        printed = _printed_table(form, part.prompt)
        notes += [_NO_TABLE] if printed is None else []
    if form.backbone is not None and printed is not None:
        user_data = [dataset for dataset in datasets if results.is_own(dataset)]
        notes += [own_note(dataset) for dataset in user_data if dataset in table_datasets(printed)]
        words, number = printed["prompt"].iloc[0], str(printed["table"].iloc[0])
        if " " in words and words not in results.prompts:
            notes.append(f"The paper's prompt is {words!r}.")
        cells, errata = _with_paper(cells, printed, datasets, user_data)
        notes += errata
    if form.level is not None:
        notes.append(f"Intervals: {100 * form.level:g} % bootstrap over images.")
    title = f"{layout.title}: {part.prompt!r}" if form.layout == "prompts" else layout.title
    return Table(form.layout, title, cells, notes=tuple(notes), level=form.level, paper=number)


def _printed_table(form: _Form, prompt: str | None) -> pd.DataFrame | None:
    """Return the paper's table of a layout; of Tables 9 and 10, both of SCE, the one with all data sets."""
    tables = layout_tables(form.layout, form.backbone)
    if form.layout == "prompts":
        tables = [table for table in tables if table["prompt"].iloc[0] == prompt]
    return max(tables, key=lambda table: len(table_datasets(table)), default=None)


def _with_paper(
    cells: pd.DataFrame, printed: pd.DataFrame, datasets: Sequence[str], user_data: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Join cells with the paper's numbers by data set, method and metric; return them with notes on errata.

    Its average is the mean of its values of the same data sets; what it prints as average has a column of its own.
    User-supplied data have no numbers, whatever they are called.
    """
    registered = printed[~printed["dataset"].isin(user_data)]
    cells = cells.assign(paper=printed_values(cells, registered[registered["dataset"] != AVERAGE], datasets))
    averages = cells[cells["dataset"] == AVERAGE].assign(**EMPTY)
    notes: list[str] = []
    if not user_data and len(averages):
        averages["paper"] = printed_values(averages, printed, [])
        averages, notes = mark_errata(averages, printed)
    if len(averages):
        cells = pd.concat([cells, averages.assign(dataset=PRINTED)], ignore_index=True)
    return cells.assign(difference=cells["value"] - cells["paper"]), notes


def _uneven(results: Results) -> Iterator[str]:
    """Yield notes on methods with different seeds or images of a data set."""
    for dataset in results.datasets:
        by_method = results.select(dataset=dataset).groupby("method", sort=False)
        seeds = by_method["seed"].agg(lambda column: ", ".join(map(str, column.unique())))
        images = by_method["planned"].max()
        for what, values in (("seeds on", seeds), ("numbers of images of", images)):
            if values.nunique() > 1:
                words = "; ".join(f"{method} {value}" for method, value in values[results.methods].items())
                yield f"The methods have different {what} {dataset!r}: {words}."


def _group_tables(results: Results, part: _Part, backbone: str | None) -> list[Table]:
    """Compute accuracy and ECE of the images above and below a threshold of TPT's mean cosine similarity.

    The paper says that the threshold is the median; the sizes of its groups fit the similarity of the initial prompt
    better. So there is a table for each.
    """
    check_names("method of the runs, which makes the groups", [SPLIT_BY], results.methods)
    tables = []
    for dataset in part.datasets:
        prompt = prompt_of(results, dataset, SPLIT_BY, part.prompt)
        methods = [name for name in part.methods if prompt in results.prompts_of(dataset, name)]
        chosen = choose(results, [dataset], methods, prompt)
        notes = progress_notes(results)
        splits = SPLITS if init_cosine(results, chosen.keys_of()[0]) is not None else SPLITS[:1]
        if len(splits) == 1:
            notes.append("The runs hold no method that adapts nothing, so there is no split at the initial value.")
        printed = None
        if backbone is not None and not results.is_own(dataset):
            printed = next(iter(layout_tables("groups", backbone)), None)
            notes += [_NO_TABLE] if printed is None else []
        tables += [_group_table(chosen, dataset, split, printed, notes) for split in splits]
    return tables


def _group_table(
    results: Results, dataset: str, split: str, printed: pd.DataFrame | None, notes: Sequence[str]
) -> Table:
    """Build the table of one data set split into groups, with the ``printed`` numbers if given."""
    frame = split_groups(results, dataset, split)
    groups = {name: [name] for name in dict.fromkeys(frame["dataset"])}
    cells = make_cells(results.narrow(frame, list(groups)), groups, ("accuracy", "ece")).assign(deviation=np.nan)
    number = None
    if printed is not None:
        cells, _ = _with_paper(cells, printed, [dataset], [])
        number = str(printed["table"].iloc[0])
    first = frame[frame["method"] == results.methods[0]].pivot(index=["variant", "seed"], columns="dataset")
    sizes = zip(*(first["images", name] for name in groups), first["threshold", dataset], strict=True)
    words = [f"{above} above and {below} below {value:.4f}" for above, below, _, value in sizes]
    at_value = "its median" if split == "median" else "the initial prompt's value"
    title = f"{dataset}: images split by TPT's mean cosine similarity at {at_value}"
    return Table("groups", title, cells, notes=(*notes, f"Sizes of the groups: {'; '.join(words)}."), paper=number)
