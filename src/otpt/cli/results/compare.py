"""``otpt compare RUN [--a o-tpt --b c-tpt]``: whether one method is better than another, or it may be chance."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.options.scoring import add_bins_options
from otpt.cli.options.spellings import add_methods_option, add_seeds_option
from otpt.cli.terminal import Column, print_columns, terminal_width
from otpt.errors import OtptError
from otpt.report.defaults import LEVEL, RESAMPLES
from otpt.runs.growing import CONFIG

if TYPE_CHECKING:
    from otpt.report import Results
    from otpt.report.compare import Comparison

_WIDE = 400  # characters of a sentence that goes to a file


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``compare``."""
    parser.description = (
        "Compare two methods image by image: accuracy by the exact McNemar test, ECE, debiased ECE, SCE, Brier score "
        "and NLL by a paired bootstrap; for each data set and over all. By default, the method with the lowest ECE is "
        "compared with the next one."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    add_methods_option(parser, default=None, words="the two methods, in place of --a and --b")
    parser.add_argument("--a", metavar="METHOD", help="one method (default: the one with the lowest ECE)")
    parser.add_argument("--b", metavar="METHOD", help="the other (default: the best of the others)")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="only these (default: all that have both)")
    parser.add_argument("--prompt", metavar="WORDS", help="which of several prompts")
    add_seeds_option(
        parser, default=None, words="seed of the views (default: the first of the runs)", dest="seed", several=False
    )
    add_bins_options(parser)
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

    _two_methods(options)
    seeds = None if options.seed is None else [options.seed]
    results = open_results(options.folders, bins=options.bins, side=options.side, seeds=seeds)
    seed = results.seeds[0]
    a, b, first = _chosen(results, options, seed)
    found = compare_methods(
        results,
        a,
        b,
        datasets=options.datasets,
        seed=seed,
        prompt=options.prompt,
        resamples=options.resamples,
        level=options.level,
    )
    words = [conclusion(each, a, b) for each in found]
    if options.json:
        shown = [{**each.as_dict(), "conclusion": text} for each, text in zip(found, words, strict=True)]
        head = {"a": a, "b": b, "seed": seed, "level": options.level}
        print(json.dumps({**head, "comparisons": shown}, indent=2, ensure_ascii=False))
        return 0
    print_columns(_columns(found, a, b, options.level))
    console = Console(highlight=False, markup=False, width=terminal_width() or _WIDE)
    console.print()
    for text in words:
        console.print(Text(" ".join(map(plain, text.split()))))
    if first:
        console.print(Text(first))
    tests = sum(len(each.differences) for each in found)
    console.print(Text(f"{tests} tests: about {0.05 * tests:.1f} of them are below p = 0.05 by chance alone."))
    return 0


def _two_methods(options: argparse.Namespace) -> None:
    """``--methods A B`` as ``--a A --b B``; a name of a method among the folders is told."""
    if options.methods is not None:
        if options.a is not None or options.b is not None:
            raise OtptError("The methods are given by --methods and by --a or --b; give them in one way.")
        if len(options.methods) > 2:
            given = len(options.methods)
            raise OtptError(f"{given} methods were given; expected two, or one to compare with the best of the others.")
        options.a, options.b = (*options.methods, None)[:2]
    there = [folder for folder in options.folders if os.path.isfile(folder / CONFIG)]
    if there and len(there) < len(options.folders):
        from otpt.report.results import methods_of
        from otpt.runs import Run

        known = methods_of([Run(folder) for folder in there])
        named = [str(folder) for folder in options.folders if folder not in there and str(folder) in known]
        if named:
            raise OtptError(f"{named[0]!r} is a method of the run, not a run; write --methods {' '.join(named)}.")


def _chosen(results: Results, options: argparse.Namespace, seed: int) -> tuple[str, str, str]:
    """The two methods, and what must be said if another one has a lower ECE than both."""
    from otpt.metrics import percent
    from otpt.report.ranking import ranked

    datasets = [name for name in options.datasets or results.datasets if name in results.datasets]
    error = ranked(results, "ece", datasets=datasets, seed=seed, prompt=options.prompt)
    a = options.a or next((name for name in error if name != options.b), None)
    b = options.b or next((name for name in error if name != a), None)
    if a is None or b is None:
        raise OtptError(
            f"The runs hold {len(error)} method(s) with all data sets under one prompt; name two with --a and --b."
        )
    lowest = next(iter(error), a)
    if lowest in (a, b) or not {a, b} <= set(error):
        return a, b, ""
    others = f"{percent(error[a])} % of {a} and {percent(error[b])} % of {b}"
    return a, b, f"The lowest ECE is that of {lowest}: {percent(error[lowest])} %, against {others}."


def _columns(found: Sequence[Comparison], a: str, b: str, level: float) -> list[Column]:
    from otpt.metrics import percent
    from otpt.report.tables.escaping import plain
    from otpt.report.tables.scores import TITLES

    heads = ("data set", "metric", plain(a), plain(b), "difference", f"{100 * level:g} %", "p", "better")
    cells: list[list[str]] = [[] for _ in heads]
    for each in found:
        for row, one in enumerate(each.differences):
            title = TITLES[one.metric]
            scale, digits = (1.0, 2) if title.endswith("%") else (0.01, 4)
            a_, b_, d, low, high = (
                percent(scale * v, digits) for v in (one.a, one.b, one.difference, one.low, one.high)
            )
            name = plain(each.dataset) if row == 0 else ""
            line = (name, title, a_, b_, d, f"{low} … {high}", f"{one.p:.3g}", plain(one.better or "–"))
            for column, cell in zip(cells, line, strict=True):
                column.append(cell)
    names = ("data set", "metric", "better")
    return [Column(head, own, is_name=head in names) for head, own in zip(heads, cells, strict=True)]
