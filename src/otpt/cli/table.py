"""``otpt table RUN``: runs as tables in the paper's layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from otpt.cli import options as o
from otpt.cli.terminal import say, terminal_width
from otpt.errors import OtptError, unknown
from otpt.files import write_atomically

_SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "terminal"}


def table(
    *runs: o.Runs,
    layout: Annotated[str, o.option("layout of the paper; a wrong name lists all", metavar="NAME")] = "main",
    metrics: Annotated[
        tuple[str, ...] | None, o.option("such as ece debiased_ece aurc (default: the layout's)", metavar="NAME")
    ] = None,
    paper: Annotated[
        tuple[str, ...] | None,
        o.option(
            "add a paper's numbers and the difference, by default O-TPT's", consume_multiple=(0, 1), metavar="[NAME]"
        ),
    ] = None,
    paper_backbone: Annotated[
        Literal["ViT-B/16", "RN50"] | None, o.option("which numbers of the paper (default: by the runs)")
    ] = None,
    intervals: o.Intervals = None,
    datasets: o.ChosenDatasets = None,
    methods: o.ChosenMethods = None,
    prompt: Annotated[str | None, o.option("which of several prompts", metavar="WORDS")] = None,
    seeds: o.ChosenSeeds = None,
    bins: o.Bins = None,
    side: o.Side = None,
    format: Annotated[
        Literal["terminal", "markdown", "csv", "latex", "json"] | None,
        o.option("format (default: by the suffix of --out)"),
    ] = None,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
) -> int:
    """Make a table of runs in a layout of the paper, with averages and marked best values, optionally with a paper's
    numbers. Exit code 3 if a run is incomplete."""
    from otpt.report import LAYOUTS, PAPERS, build_tables, compare_with_paper, open_results, render
    from otpt.report.papers import BACKBONES, OTPT, guess_backbone

    form = format or ("terminal" if out is None else _SUFFIXES.get(out.suffix.lower()))
    if form is None:
        raise OtptError(f"{str(out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or --format.")
    name, level = o.optional(paper, OTPT), o.optional(intervals, 0.95)
    if name is not None and name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    o.check_run_folders(runs)
    results = open_results(runs, n_bins=bins, side=side, seeds=seeds, one_backbone=not LAYOUTS[layout].by_table)
    if name not in (None, OTPT):
        own = {"--layout": layout != "main", "--metrics": metrics, "--intervals": level}
        for option in (option for option, given in own.items() if given):
            raise OtptError(f"{option} goes with layouts of the O-TPT paper; leave it out with --paper {name}.")
        tables = compare_with_paper(results, str(name), datasets=datasets, methods=methods, prompt=prompt)
    else:
        backbone = None
        if name or paper_backbone:
            backbone = paper_backbone or guess_backbone(results) or (BACKBONES[0] if LAYOUTS[layout].by_table else None)
            if backbone is None:
                raise OtptError(f"The paper has no numbers of {results.model!r}; choose some with --paper-backbone.")
        tables = build_tables(
            results,
            layout,
            datasets=datasets,
            methods=methods,
            metrics=metrics,
            prompt=prompt,
            paper=backbone,
            level=level,
        )
    if out is None:
        print(render(tables, form, width=terminal_width()), end="")
    else:
        write_atomically(out, render(tables, form).encode())
    for run, done, total in results.progress:
        say(f"the run {str(run.folder)!r} is in progress: {done} of {total} images are done")
    return 3 if results.partial else 0
