"""``otpt compare``, ``otpt table`` and ``otpt report``: what runs found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from otpt.cli import options as o
from otpt.cli.terminal import command_line, print_json, say, terminal_width
from otpt.errors import OtptError, unknown
from otpt.files import write_atomically

if TYPE_CHECKING:
    from otpt.report import Results
    from otpt.runs import Run

_SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "terminal"}


def compare(
    *runs: o.Runs,
    datasets: o.ChosenDatasets = None,
    prompt: o.ChosenPrompt = None,
    resamples: Annotated[int, o.option("bootstrap resamples")] = 1000,
    level: Annotated[float, o.option("confidence level of the intervals")] = 0.95,
    json: o.Json = False,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Compare two methods image by image (default: the two with the lowest ECE): accuracy by the exact McNemar test,
    calibration errors, Brier score and NLL by a paired bootstrap; for each data set and over all, seeds averaged.

    otpt compare runs/main --methods o-tpt c-tpt
    """
    from otpt.report import compare_methods, comparison_table
    from otpt.report.formats import text_table

    if len(which.methods or ()) > 2:
        raise OtptError(f"{len(which.methods or ())} methods were given; expected two, or one and the best other.")
    results = which.open(runs)
    a, b, lowest = _pick(results, which.methods or (), datasets, prompt)
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


def table(
    *runs: o.Runs,
    layout: Annotated[str, o.option("layout of the paper; a wrong name lists all", metavar="NAME")] = "main",
    metrics: Annotated[o.Several, o.option("such as ece aurc (default: the layout's)", metavar="NAME")] = None,
    paper: Annotated[
        o.Several,
        o.option("add a paper's numbers, by default O-TPT's", consume_multiple=(0, 1), metavar="[NAME]"),
    ] = None,
    paper_backbone: Annotated[
        Literal["ViT-B/16", "RN50"] | None, o.option("which numbers of the paper (default: by the runs)")
    ] = None,
    intervals: o.Intervals = None,
    datasets: o.ChosenDatasets = None,
    prompt: o.ChosenPrompt = None,
    format: Annotated[
        Literal["terminal", "markdown", "csv", "latex", "json"] | None,
        o.option("format (default: by the suffix of --out)"),
    ] = None,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Make a table of runs in a layout of the paper, with averages and marked best values, optionally with a paper's
    numbers and the difference. Exit code 3 if a run is incomplete.

    otpt table runs/main --paper
    otpt table runs/* --metrics accuracy debiased_ece --out table.tex
    """
    from otpt.cli.labels import label_runs, label_table_text
    from otpt.report import LAYOUTS, PAPERS, build_tables, compare_with_paper, render
    from otpt.report.papers import BACKBONES, OTPT, guess_backbone

    form = format or ("terminal" if out is None else _SUFFIXES.get(out.suffix.lower()))
    if form is None:
        raise OtptError(f"{str(out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or --format.")
    name, level = o.optional(paper, OTPT), o.optional(intervals, 0.95)
    for kind, given, known in (("paper", name or OTPT, PAPERS), ("layout", layout, LAYOUTS)):
        if given not in known:
            raise unknown(kind, given, known)
    if labels := label_runs(runs):
        text = label_table_text(labels, form, n_bins=which.bins)
        if out is None:
            print(text, end="")
        else:
            write_atomically(out, text.encode())
        return say_in_progress(labels)
    by_table = LAYOUTS[layout].by_table
    results = which.open(runs, one_backbone=not by_table)
    if name not in (None, OTPT):
        if layout != "main" or metrics or level:
            raise OtptError(f"--layout, --metrics and --intervals go with the O-TPT paper, not with --paper {name}.")
        tables = compare_with_paper(results, str(name), datasets=datasets, methods=which.methods, prompt=prompt)
    else:
        backbone: str | None = paper_backbone
        if name and backbone is None:
            backbone = guess_backbone(results) or (BACKBONES[0] if by_table else None)
            if backbone is None:
                raise OtptError(f"The paper has no numbers of {results.model!r}; choose some with --paper-backbone.")
        tables = build_tables(
            results,
            layout,
            datasets=datasets,
            methods=which.methods,
            metrics=metrics,
            prompt=prompt,
            paper=backbone,
            level=level,
        )
    if out is None:
        print(render(tables, form, width=terminal_width()), end="")
    else:
        write_atomically(out, render(tables, form).encode())
    return say_in_progress(results.runs)


def say_in_progress(runs: Sequence[Run]) -> int:
    """Say which runs are incomplete; returns the exit code."""
    found = [(run, *run.progress()) for run in runs]
    missing = [(run, done, total) for run, done, total in found if done < total]
    for run, done, total in missing:
        say(f"the run {str(run.folder)!r} is incomplete: {done} of {total} images are done")
    return 3 if missing else 0


def report(
    *runs: o.Runs,
    out: Annotated[Path, o.out("the page")] = Path("report.html"),
    title: Annotated[str, o.option("title of the page", metavar="TEXT")] = "Calibration report",
    data: o.Data = None,
    images: Annotated[int, o.option("images of each kind per data set, 0 for none")] = 6,
    explain: Annotated[
        tuple[int, ...] | None,
        o.option(
            "heat maps of the N most confident mistakes of each method and data set, 3 by default; loads the model",
            consume_multiple=(0, 1),
            metavar="[N]",
        ),
    ] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Make one HTML file of runs, of one model or several: summary, sortable tables, reliability diagrams, images,
    settings. It needs no network and no other file.

    otpt report runs/main --out report.html --data ~/data
    otpt report runs/main --explain 3
    """
    from otpt.cli.labels import label_runs, show_labels
    from otpt.report import open_models
    from otpt.report.page import make_page, write_page

    if out.suffix.lower() not in (".html", ".htm"):
        raise OtptError(f"The page cannot be written to {str(out)!r}; expected a name that ends in .html.")
    if labels := label_runs(runs):
        return show_labels(labels, out=out, n_bins=which.bins, title=title)
    models = open_models(runs, n_bins=which.bins, side=which.side, seeds=which.seeds, methods=which.methods)
    maps = o.optional(explain, 3) or 0
    page = make_page(models, title=title, root=data, images=images, explain=maps, command=command_line())
    write_page(out, page)
    print(f"The page is in {str(out)!r} ({len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB).")
    for results in models.values():
        say_in_progress(results.runs)
    return 0
