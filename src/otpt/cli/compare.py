"""``otpt compare RUN --a o-tpt --b c-tpt``: whether one method is better than another, or it may be chance."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.spellings import add_seeds_option
from otpt.report.defaults import LEVEL, RESAMPLES
from otpt.runs.format import SIDES

if TYPE_CHECKING:
    from rich.table import Table

    from otpt.report.compare import Comparison

_PERCENT = {"accuracy": "accuracy %", "ece": "ECE %", "sce": "SCE %"}
_OTHERS = {"brier": "Brier", "nll": "NLL"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``compare``."""
    parser.description = (
        "Compare two methods image by image: accuracy by the exact McNemar test, ECE, SCE, Brier score "
        "and NLL by a paired bootstrap; for each data set and over all."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--a", required=True, metavar="METHOD", help="one method")
    parser.add_argument("--b", required=True, metavar="METHOD", help="the other")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="only these (default: all that have both)")
    parser.add_argument("--prompt", metavar="WORDS", help="which of several prompts")
    add_seeds_option(
        parser, default=None, words="seed of the views (default: the first of the runs)", dest="seed", several=False
    )
    parser.add_argument(
        "--bins", type=int, metavar="M", help="bins of the calibration errors, at most 100 (default: as in the runs)"
    )
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
    parser.add_argument(
        "--resamples", type=int, default=RESAMPLES, metavar="N", help="bootstrap resamples (default: %(default)s)"
    )
    parser.add_argument(
        "--level",
        type=float,
        default=LEVEL,
        metavar="P",
        help="confidence level of the intervals (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare and print."""
    from rich.console import Console
    from rich.text import Text

    from otpt.report import open_results
    from otpt.report.compare import compare_methods, conclusion
    from otpt.report.tables.escaping import plain

    seeds = None if options.seed is None else [options.seed]
    results = open_results(options.folders, bins=options.bins, side=options.side, seeds=seeds)
    a, b = options.a, options.b
    found = compare_methods(
        results,
        a,
        b,
        datasets=options.datasets,
        seed=options.seed,
        prompt=options.prompt,
        resamples=options.resamples,
        level=options.level,
    )
    words = [conclusion(each, a, b) for each in found]
    if options.json:
        shown = [{**each.as_dict(), "conclusion": text} for each, text in zip(found, words, strict=True)]
        head = {
            "a": a,
            "b": b,
            "seed": results.seeds[0] if options.seed is None else options.seed,
            "level": options.level,
        }
        print(json.dumps({**head, "comparisons": shown}, indent=2, ensure_ascii=False))
        return 0
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=400)
    console.print(_table(found, a, b, options.level))
    console.print()
    for text in words:
        console.print(Text(" ".join(map(plain, text.split()))))
    tests = sum(len(each.differences) for each in found)
    console.print(Text(f"{tests} tests: about {0.05 * tests:.1f} of them are below p = 0.05 by chance alone."))
    return 0


def _table(found: Sequence[Comparison], a: str, b: str, level: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    from otpt.report.tables.escaping import plain

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("data set", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for head in (plain(a), plain(b), "difference", f"{100 * level:g} %", "p"):
        table.add_column(Text(head), justify="right", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for each in found:
        for row, one in enumerate(each.differences):
            scale, digits = (100.0, 2) if one.metric in _PERCENT else (1.0, 4)
            a_, b_, d, low, high = (
                f"{scale * v:.{digits}f}" for v in (one.a, one.b, one.difference, one.low, one.high)
            )
            name = plain(each.dataset) if row == 0 else ""
            title = (_PERCENT | _OTHERS)[one.metric]
            table.add_row(
                Text(name), title, a_, b_, d, f"{low} … {high}", f"{one.p:.3g}", Text(plain(one.better or "–"))
            )
    return table
