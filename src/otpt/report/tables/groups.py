"""The two-group table: accuracy and ECE of the images above and below a threshold of TPT's mean cosine similarity.

The paper says that the threshold is the median; the sizes of its groups fit the similarity of the initial prompt
better. So there is a table for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from otpt.report.cosines import BY, SPLITS, check_groups, group_rows, group_value, init_cosine, two_groups
from otpt.report.papers.paper import PaperTable, layout_tables
from otpt.report.prompts import prompt_of
from otpt.report.results import ResultKey, Results
from otpt.report.tables.layouts import progress_note
from otpt.report.tables.table import Column, Entry, Line, Table, mark_best

_METRICS = ("accuracy", "ece")
_TITLES = {"median": "its median", "init": "the initial prompt's value"}


def group_tables(
    results: Results, datasets: Sequence[str], methods: Sequence[str], *, prompt: str | None, paper: str | None
) -> list[Table]:
    """A table for each data set and split; that at the initial value needs a method that adapts nothing."""
    check_groups(results)
    tables = []
    for dataset in datasets:
        first = ResultKey(dataset, results.seeds_of(dataset)[0], prompt_of(results, dataset, BY, prompt), BY)
        own = [method for method in methods if first.prompt in results.prompts_of(dataset, method)]
        notes = [progress_note(results)] if results.partial else []
        known = init_cosine(results, first) is not None
        if not known:
            notes.append("The runs hold no method that adapts nothing, so there is no split at the initial value.")
        for split in SPLITS[: 2 if known else 1]:
            beside = paper is not None and not results.is_own(dataset)
            printed = next(iter(layout_tables("groups", paper)), None) if beside else None
            tables.append(_table(results, first, own, split, printed, notes))
    return tables


def _table(
    results: Results,
    first: ResultKey,
    methods: Sequence[str],
    split: str,
    paper: PaperTable | None,
    notes: Sequence[str],
) -> Table:
    keys = [first._replace(seed=seed) for seed in results.seeds_of(first.dataset, BY, first.prompt)] or [first]
    groups = [two_groups(results, key, split=split) for key in keys]
    sizes = [f"{int(g.above.sum())} above and {int((~g.above).sum())} below {g.threshold:.4f}" for g in groups]
    columns = (f"{first.dataset}:group 1", f"{first.dataset}:group 2", first.dataset)
    lines = []
    partial = any(results.is_partial(key) for key in keys)
    for method in methods:
        rows = [
            group_rows(results, key._replace(method=method), group) for key, group in zip(keys, groups, strict=True)
        ]
        for metric in _METRICS:
            entries = []
            for at, column in enumerate(columns):
                masks = [(g.above, ~g.above, np.ones_like(g.above))[at] for g in groups]
                values = [group_value(results, own, metric, mask) for own, mask in zip(rows, masks, strict=True)]
                known = [value for value in values if value is not None]
                value = 100.0 * mean(known) if len(known) == len(values) else None
                printed = None if paper is None else paper.value(method, metric, column)
                entries.append(Entry(value, paper=printed, partial=partial))
            lines.append(Line(method, metric, tuple(entries)))
    title = f"{first.dataset}: images split by TPT's mean cosine similarity at {_TITLES[split]}"
    heads = tuple(map(Column, columns, ("Group 1 (above)", "Group 2 (below)", "Overall")))
    notes = [*notes, f"Sizes of the groups: {'; '.join(sizes)}."]
    return Table("groups", title, heads, mark_best(lines), tuple(notes), paper=None if paper is None else paper.number)
