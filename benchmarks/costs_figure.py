"""The figures of the page on scale: ``python -m benchmarks.costs_figure`` after ``python -m benchmarks.evaluation``.

Reads ``benchmarks/results/evaluation.json``; writes ``docs/assets/costs.svg`` (seconds per image against classes, views
and methods) and ``docs/assets/memory.svg`` (memory along 20,000 images).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from benchmarks.evaluation import RESULTS

ASSETS = Path("docs/assets")
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#767676"  # told apart by everybody, legible on white and on black
# No date and fixed names inside the files, so that the same numbers give the same bytes.
STYLE: Any = {"svg.hashsalt": "otpt", "svg.fonttype": "path", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}


def costs(rows: list[dict[str, Any]]) -> Figure:
    """One panel each for classes, views and methods; a common vertical axis from zero."""
    figure = Figure(figsize=(8.4, 2.8), layout="constrained")
    kinds = list(dict.fromkeys(row["varied"] for row in rows))
    panels = figure.subplots(1, len(kinds), sharey=True)
    for panel, kind in zip(panels, kinds, strict=True):
        own = [row for row in rows if row["varied"] == kind]
        panel.plot([row["value"] for row in own], [row["seconds"] for row in own], "o-", color=BLUE)
        panel.set_xlabel(kind)
        panel.set_ylim(0, 1.1 * max(row["seconds"] for row in rows))
        if kind != "methods":
            panel.set_xscale("log")
            panel.minorticks_off()
        panel.set_xticks([row["value"] for row in own], [str(row["value"]) for row in own])
    panels[0].set_ylabel("seconds per image")
    return figure


def memory(samples: list[tuple[int, float]]) -> Figure:
    """Resident memory; the axis starts at zero, so that flat looks flat and nothing else does."""
    figure = Figure(figsize=(4.2, 2.4), layout="constrained")
    panel = figure.subplots()
    panel.plot([count for count, _ in samples], [mib for _, mib in samples], "o-", color=BLUE, markersize=3)
    panel.axhline(samples[0][1], color=GREY, linestyle=":", linewidth=1)
    panel.set_xlabel("images")
    panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.set_ylabel("memory, MiB")
    panel.set_ylim(0, 1.2 * max(mib for _, mib in samples))
    return figure


def main() -> None:
    """Draw both."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    with mpl.rc_context(STYLE):
        for name, figure in (("costs", costs(measured["costs"])), ("memory", memory(measured["memory"]))):
            figure.savefig(ASSETS / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
