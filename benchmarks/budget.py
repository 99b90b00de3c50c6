"""What views cost and give: ``python -m benchmarks.budget WORK``, after ``python -m benchmarks.default WORK``.

The default method with 2, 4, … 64 views of every image, and with budgets of 16, 32 and 64, where views come in rounds
and stop once they agree, on the emoji sets that the default was chosen on. One view is zero-shot. The features are
those of the cache, so this takes minutes. ``--write`` puts the table into ``docs/default.md`` and draws the curve,
``docs/assets/budget.svg``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.costs_figure import ASSETS, BLUE, STYLE, VERMILION
from benchmarks.default import CHOOSE, PAGE
from benchmarks.field import Bench, Cells, add_options, benches, summarise
from benchmarks.pages import put_into
from otpt.methods import DEFAULT_METHOD
from otpt.runs import Run, read_rows
from otpt.views import ViewRecipe

FIXED = (2, 4, 8, 16, 32, 64)
BUDGETS = (16, 32, 64)


@dataclass(frozen=True)
class Point:
    """One way to spend views: its name, whether it stops early, the mean number of views, and the numbers."""

    name: str
    in_rounds: bool
    views: float
    cells: Cells


def points(options: argparse.Namespace, bench: Bench, seeds: Sequence[int]) -> list[Point]:
    """All ways, measured where that is missing."""
    datasets = [make().name for make in bench.makers]

    def point(name: str, method: str, recipe: ViewRecipe) -> Point:
        run = bench.measure(options, [method], seeds, recipe=recipe, name=f"budget-{name.replace(' ', '-')}")
        views = mean_views(run, method, seeds, datasets) if recipe.rounds else float(recipe.n_views)
        return Point(name, bool(recipe.rounds), views, summarise(run, method, seeds, datasets))

    found = [point("1 view", "zero-shot", ViewRecipe(n_views=1))]
    found += [point(f"{n} views", DEFAULT_METHOD, ViewRecipe(n_views=n)) for n in FIXED]
    found += [point(f"budget {n}", DEFAULT_METHOD, ViewRecipe.within(n)) for n in BUDGETS]
    return found


def mean_views(run: Run, method: str, seeds: Sequence[int], datasets: Sequence[str]) -> float:
    """Over images, seeds and sets."""
    found = []
    for dataset in datasets:
        (column,) = (each for each in run.columns(dataset) if each[1] == method)
        for seed in seeds:
            rows = read_rows(run, dataset, seed, column)
            assert rows is not None  # it was measured
            found.append(float(np.mean(rows.table["views"].to_numpy())))
    return float(np.mean(found))


def table(found: Sequence[Point]) -> str:
    """Markdown, a row per way."""
    lines = ["| views | mean number | accuracy % | debiased ECE % | NLL |", "|---|---|---|---|---|"]
    for each in found:
        accuracy, error = (100 * each.cells[metric][0] for metric in ("accuracy", "debiased_ece"))
        lines.append(f"| {each.name} | {each.views:.1f} | {accuracy:.1f} | {error:.1f} | {each.cells['nll'][0]:.3f} |")
    return "\n".join(lines)


def figure(found: Sequence[Point]) -> Figure:
    """Accuracy and NLL against the mean number of views, which is what encoding costs."""
    drawn = Figure(figsize=(7.6, 2.9), layout="constrained")
    panels = drawn.subplots(1, 2)
    for panel, (metric, title, scale) in zip(
        panels, (("accuracy", "accuracy, %", 100), ("nll", "NLL", 1)), strict=True
    ):
        for in_rounds, colour, label in (
            (False, BLUE, "always so many"),
            (True, VERMILION, "in rounds, until they agree"),
        ):
            own = sorted((each for each in found if each.in_rounds == in_rounds), key=lambda each: each.views)
            panel.plot(
                [each.views for each in own],
                [scale * each.cells[metric][0] for each in own],
                "s--" if in_rounds else "o-",
                color=colour,
                label=label,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
        panel.set_xlabel("views per image, mean")
        panel.set_ylabel(title)
    panels[1].legend(loc="upper right")
    return drawn


def main() -> None:
    """Measure what is missing, then print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    options.sets = CHOOSE["emoji"]
    found = points(options, benches(options)[0], range(options.seeds))
    text = table(found)
    print(text)
    if options.write:
        put_into(PAGE, "budget", text)
        with mpl.rc_context(STYLE):
            figure(found).savefig(ASSETS / "budget.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
