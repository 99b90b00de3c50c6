"""``otpt compare RUN --methods o-tpt c-tpt``: paired tests of two methods on the same images."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from otpt.cli import options as o
from otpt.cli.terminal import print_json, terminal_width
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.report import Results


def compare(
    *runs: o.Runs,
    methods: Annotated[
        tuple[str, ...] | None,
        o.option("two methods (default: the two with the lowest ECE)", "--methods", "--method", metavar="NAME"),
    ] = None,
    datasets: o.ChosenDatasets = None,
    prompt: Annotated[str | None, o.option("which of several prompts", metavar="WORDS")] = None,
    seeds: Annotated[
        tuple[int, ...] | None, o.option("seeds of the views, averaged (default: all)", "--seeds", "--seed")
    ] = None,
    bins: o.Bins = None,
    side: o.Side = None,
    resamples: Annotated[int, o.option("bootstrap resamples")] = 1000,
    level: Annotated[float, o.option("confidence level of the intervals")] = 0.95,
    json: o.Json = False,
) -> int:
    """Compare two methods image by image: accuracy by the exact McNemar test, calibration errors, Brier score and NLL
    by a paired bootstrap; for each data set and over all."""
    from otpt.report import compare_methods, comparison_table, open_results
    from otpt.report.formats import text_table

    if methods is not None and len(methods) > 2:
        raise OtptError(f"{len(methods)} methods were given; expected two, or one to compare with the best other.")
    o.check_run_folders(runs)
    results = open_results(runs, n_bins=bins, side=side, seeds=seeds)
    a, b, lowest = _pick(results, methods or (), datasets, prompt)
    found = compare_methods(results, a, b, datasets=datasets, prompt=prompt, resamples=resamples, level=level)
    if json:
        rows = [each.as_dict() for each in found]
        print_json({"a": a, "b": b, "seeds": results.seeds, "level": level, "comparisons": rows})
        return 0
    width = terminal_width()
    print(text_table(comparison_table(found, level), 2, width), end="\n\n")
    tests = sum(len(each.differences) for each in found)
    chance = f"{tests} tests: about {0.05 * tests:.1f} of them are below p = 0.05 by chance alone."
    for sentence in filter(None, (*(each.conclusion for each in found), lowest, chance)):
        print(textwrap.fill(" ".join(sentence.split()), width or 120))
    return 0


def _pick(
    results: Results, methods: Sequence[str], datasets: Sequence[str] | None, prompt: str | None
) -> tuple[str, str, str]:
    """The two methods, and a sentence if another one has a lower ECE than both."""
    from otpt.report import ranked

    names = [name for name in datasets or results.datasets if name in results.datasets]
    error = ranked(results, "ece", datasets=names, prompt=prompt)
    found = [*methods, *(name for name in error if name not in methods)]
    if len(found) < 2:
        raise OtptError(f"The runs hold {len(found)} method with all data sets under one prompt; name two.")
    a, b = found[:2]
    best = next(iter(error), a)
    if best in (a, b) or not {a, b} <= set(error):
        return a, b, ""
    others = f"{100 * error[a]:.2f} % of {a} and {100 * error[b]:.2f} % of {b}"
    return a, b, f"The lowest ECE is that of {best}: {100 * error[best]:.2f} %, against {others}."
