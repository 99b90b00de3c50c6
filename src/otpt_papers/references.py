"""Papers as references of ``otpt table --paper``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from otpt.errors import OtptError, unknown
from otpt.report import Reference, Results, Selection, Table
from otpt.report.results import check_names
from otpt_papers.comparison import compare_with_paper
from otpt_papers.layouts import LAYOUTS, MAIN
from otpt_papers.papers import BACKBONES, OTPT, get_paper, guess_backbone, table_datasets


class OtptPaper(Reference):
    """The O-TPT paper, whose layouts the tables have."""

    def tables(
        self,
        results: Results,
        selection: Selection,
        *,
        layout: str | None = None,
        backbone: str | None = None,
        number: str | None = None,
    ) -> list[Table]:
        """Return the tables of a layout, or one table by its number, with the printed numbers."""
        if number is not None:
            return _numbered_table(results, selection, number, layout, backbone)
        name = MAIN if layout is None else layout
        if name not in LAYOUTS:
            raise unknown("layout of the paper", name, LAYOUTS)
        form = LAYOUTS[name]
        if backbone is None:
            backbone = guess_backbone(results) or (BACKBONES[0] if form.mixes_models else None)
        if backbone is None:
            raise OtptError(f"The paper has no numbers of {results.model!r}; choose some with --paper-backbone.")
        return form.tables(results, selection, backbone=backbone)


def _numbered_table(
    results: Results, selection: Selection, number: str, layout: str | None, backbone: str | None
) -> list[Table]:
    """Return one table of the paper with what the results share with it."""
    rows = get_paper(OTPT).numbers
    check_names("table of the paper", [number], rows["table"])
    rows = rows[rows["table"] == number]
    if backbone is None and rows["backbone"].nunique() > 1:
        backbone = guess_backbone(results)
        if backbone is None:
            raise OtptError(
                f"Table {number} has two backbones, and the runs are of {results.model!r}; choose one with "
                "--paper-backbone."
            )
    printed = rows if backbone is None else rows[rows["backbone"] == backbone]
    check_names(f"backbone of Table {number}", [backbone] if backbone else None, rows["backbone"])
    form = LAYOUTS[str(printed["layout"].iloc[0])]
    if layout not in (None, form.name):
        raise OtptError(
            f"Table {number} of the paper has the layout {form.name!r}, not {layout!r}; leave --layout out."
        )
    datasets = list(
        dict.fromkeys(name if form.name == "medical" else name.partition(":")[0] for name in table_datasets(printed))
    )
    shared = [name for name in datasets if name in results.datasets]
    methods = [name for name in dict.fromkeys(printed["method"]) if name in results.methods]
    if not shared or not methods:
        raise OtptError(
            f"Table {number} of the paper has {', '.join(dict.fromkeys(printed['method']))} on {', '.join(datasets)}; "
            f"the runs hold {', '.join(results.methods)} on {', '.join(results.datasets)}."
        )
    chosen = replace(selection, datasets=selection.datasets or shared, methods=selection.methods or methods)
    return form.tables(results, chosen, backbone=str(printed["backbone"].iloc[0]), printed=printed)


@dataclass(frozen=True)
class PeerPaper(Reference):
    """Another paper, compared table by table.

    Attributes:
        name: name of the paper.
    """

    name: str

    def tables(
        self,
        results: Results,
        selection: Selection,
        *,
        layout: str | None = None,
        backbone: str | None = None,
        number: str | None = None,
    ) -> list[Table]:
        """Return the tables of the paper that share numbers with the results."""
        if layout not in (None, MAIN) or selection.metrics or selection.level:
            raise OtptError(
                f"--layout, --metrics and --intervals go with the O-TPT paper, not with --paper {self.name}."
            )
        return compare_with_paper(
            results,
            self.name,
            datasets=selection.datasets,
            methods=selection.methods,
            prompt=selection.prompt,
            backbone=backbone,
            tables=None if number is None else [number],
        )
