"""Papers as references of ``otpt table --paper``."""

from __future__ import annotations

from dataclasses import dataclass

from otpt.errors import OtptError, unknown
from otpt.report import Reference, Results, Selection, Table
from otpt_papers.comparison import compare_with_paper
from otpt_papers.layouts import LAYOUTS, MAIN
from otpt_papers.papers import BACKBONES, guess_backbone


class OtptPaper(Reference):
    """The O-TPT paper, whose layouts the tables have."""

    def tables(
        self, results: Results, selection: Selection, *, layout: str | None = None, backbone: str | None = None
    ) -> list[Table]:
        """Return the tables of a layout with the printed numbers."""
        name = MAIN if layout is None else layout
        if name not in LAYOUTS:
            raise unknown("layout of the paper", name, LAYOUTS)
        form = LAYOUTS[name]
        if backbone is None:
            backbone = guess_backbone(results) or (BACKBONES[0] if form.mixes_models else None)
        if backbone is None:
            raise OtptError(f"The paper has no numbers of {results.model!r}; choose some with --paper-backbone.")
        return form.tables(results, selection, backbone=backbone)


@dataclass(frozen=True)
class PeerPaper(Reference):
    """Another paper, compared table by table.

    Attributes:
        name: name of the paper.
    """

    name: str

    def tables(
        self, results: Results, selection: Selection, *, layout: str | None = None, backbone: str | None = None
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
        )
