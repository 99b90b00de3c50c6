"""Which prompt is shown where the runs have several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.report.papers.paper import layout_tables

if TYPE_CHECKING:
    from otpt.report.results import Results


def prompt_of(results: Results, dataset: str, method: str, wanted: str | None) -> str:
    """The prompt under which a method is shown on a data set: the one wanted, its only one, or the paper's."""
    held = results.prompts_of(dataset, method)
    if wanted is not None or not held:
        return wanted or ""
    if len(held) == 1:
        return held[0]
    for paper in layout_tables("main", None):
        if paper.prompt in held:
            return paper.prompt
    raise OtptError(
        f"The runs hold {dataset!r} with {len(held)} prompts ({'; '.join(held[:5])}{' …' if len(held) > 5 else ''}); "
        "choose one with --prompt, or the layout 'prompts'."
    )
