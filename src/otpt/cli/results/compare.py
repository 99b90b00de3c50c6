"""``otpt compare RUN [--a o-tpt --b c-tpt]``: whether one method is better than another, or it may be chance."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.options.scoring import add_bins_options
from otpt.cli.options.spellings import add_methods_option, add_seeds_option
from otpt.cli.terminal import terminal_width
from otpt.errors import OtptError
from otpt.report import compare_methods, comparison_table, open_results, ranked
from otpt.report.formats import text_table
from otpt.report.results import LEVEL, methods_of
from otpt.report.statistics import RESAMPLES
from otpt.runs.growing import CONFIG

if TYPE_CHECKING:
    from otpt.report import Results


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
    add_seeds_option(parser, default=None, words="seeds of the views, averaged (default: all of the runs)")
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
    _two_methods(options)
    results = open_results(options.folders, n_bins=options.bins, side=options.side, seeds=options.seeds)
    a, b, first = _chosen(results, options)
    found = compare_methods(
        results,
        a,
        b,
        datasets=options.datasets,
        prompt=options.prompt,
        resamples=options.resamples,
        level=options.level,
    )
    if options.json:
        head = {"a": a, "b": b, "seeds": results.seeds, "level": options.level}
        print(json.dumps({**head, "comparisons": [each.as_dict() for each in found]}, indent=2, ensure_ascii=False))
        return 0
    width = terminal_width()
    print(text_table(comparison_table(found, options.level), 2, width), end="\n\n")
    tests = sum(len(each.differences) for each in found)
    chance = f"{tests} tests: about {0.05 * tests:.1f} of them are below p = 0.05 by chance alone."
    for text in [*(each.conclusion for each in found), *([first] if first else []), chance]:
        print(textwrap.fill(" ".join(text.split()), width or 400))
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
        from otpt.runs import Run

        known = methods_of([Run(folder) for folder in there])
        named = [str(folder) for folder in options.folders if folder not in there and str(folder) in known]
        if named:
            raise OtptError(f"{named[0]!r} is a method of the run, not a run; write --methods {' '.join(named)}.")


def _chosen(results: Results, options: argparse.Namespace) -> tuple[str, str, str]:
    """The two methods, and what must be said if another one has a lower ECE than both."""
    from otpt.metrics import percent

    datasets = [name for name in options.datasets or results.datasets if name in results.datasets]
    error = ranked(results, "ece", datasets=datasets, prompt=options.prompt)
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
