"""Risk–coverage curves: the error rate when only the most confident predictions are kept."""

from __future__ import annotations

from matplotlib.figure import Figure

from otpt.metrics import aurc, percent
from otpt.report.figures.drawing.curves import risk_coverage
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import panels_in_rows
from otpt.report.figures.drawing.words import footnote, short
from otpt.report.figures.selection import Selection


def draw_risk_coverage(selection: Selection) -> Figure:
    """A panel for each data set, a curve for each method, the area under it in the legend."""
    figure, axes = panels_in_rows(len(selection.datasets), size=(2.9, 2.3 + 0.13 * -(-len(selection.methods) // 2)))
    look = looks(selection.methods)
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        for method in selection.methods:
            found = selection.rows(dataset, method)
            coverage, risk = risk_coverage(found.confidences, found.correct)
            panel.plot(
                100 * coverage,
                100 * risk,
                color=look[method].colour,
                linestyle=look[method].dash,
                label=f"{short(method)}, AURC {percent(aurc(found.confidences, found.correct))}",
            )
        panel.set(
            xlabel="coverage: predictions kept %", ylabel="risk: wrong among them %", xlim=(0, 100), ylim=(0, None)
        )
        panel.set_title(short(dataset))
        # below: whatever corner is free in one panel is not in the next
        panel.legend(loc="upper left", bbox_to_anchor=(-0.16, -0.2), ncols=2, fontsize=6.5, columnspacing=1.0)
    footnote(figure, f"lower is better; {selection.note(one_seed=True, bins=False)}")
    return figure
