"""Zero-shot, TPT, C-TPT and O-TPT with ``pocket`` on the whole emoji bench: ``python -m benchmarks.emoji WORK``.

λ at the paper's values, and λ with the lowest ECE on one set (a sweep on the whole of it with seed 0), used on
all. A stratified subset of thirteen sets, three seeds of the views. The tables go to the standard output, and with
``--write`` into ``docs/pocket.md``. Stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.measuring import measure
from benchmarks.pages import put_into
from benchmarks.score_tables import score_table
from otpt.data import load_dataset
from otpt.data.emoji.sets import GROUPS, SHIFTS
from otpt.evaluation import Settings, sweep_method
from otpt.methods import Method, get_method
from otpt.metrics import percent
from otpt.runs import Score

CHOSEN_ON = "emoji/activities"
LAMBDAS = {
    "c-tpt": ("1", "10", "20", "50", "100", "200"),
    "o-tpt": ("1", "6", "18", "54", "160", "480"),
}
SEEDS = (0, 1, 2)
IMAGES = 270  # of each set: every class of every set at least once
PAPER = ("zero-shot", "tpt", "c-tpt", "o-tpt")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "pocket.md"


def swept() -> list[Method]:
    """TPT, and the two others under every λ."""
    variants = [each for name, values in LAMBDAS.items() for each in sweep_method(get_method(name), {"lambda": values})]
    return [get_method("zero-shot"), get_method("tpt"), *variants]


def chosen(scores: Sequence[Score]) -> list[Method]:
    """Of each method the variant with the lowest ECE."""
    ece = {score.method: score.metrics.ece for score in scores if score.metrics is not None}
    found = []
    for name, values in LAMBDAS.items():
        variants = sweep_method(get_method(name), {"lambda": values})
        found.append(min(variants, key=lambda method: ece[method.name]))
    return found


def sweep_table(scores: Sequence[Score]) -> str:
    """One row per method and λ."""
    lines = ["| method | accuracy % | ECE % | over-confidence % |", "|---|---|---|---|"]
    for score in scores:
        if score.metrics is not None:
            values = (score.metrics.accuracy, score.metrics.ece, score.metrics.overconfidence)
            lines.append(f"| `{score.method}` | {' | '.join(map(percent, values))} |")
    return "\n".join(lines)


def main() -> None:
    """Choose λ, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the runs")
    parser.add_argument("--images", type=int, default=IMAGES, help="of each set (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    once = Settings(swept(), seeds=SEEDS[:1])
    sweep = measure("pocket", [partial(load_dataset, CHOSEN_ON)], once, options.work / "sweep", options.workers)
    methods = [*map(get_method, PAPER), *chosen(sweep.scores)]
    sets = [partial(load_dataset, f"emoji/{name}") for name in GROUPS + SHIFTS]
    thrice = Settings(methods, seeds=SEEDS, limit=options.images)
    found = measure("pocket", sets, thrice, options.work / f"images-{options.images}", options.workers)
    rows = [method.name for method in methods]
    texts = {"sweep": sweep_table(sweep.scores)}
    for part, kinds in (("sets", GROUPS), ("shifts", SHIFTS)):
        texts[part] = score_table(found.scores, rows, [f"emoji/{kind}" for kind in kinds])
    for name, text in texts.items():
        print(f"\n{text}")
        if options.write:
            put_into(PAGE, name, text)


if __name__ == "__main__":
    main()
