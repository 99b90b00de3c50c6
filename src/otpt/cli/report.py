"""``otpt report RUN``: one HTML page of runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from otpt.cli import options as o
from otpt.cli.app import command_line
from otpt.errors import OtptError


def report(
    *runs: o.Runs,
    out: Annotated[Path, o.out("the page")] = Path("report.html"),
    title: Annotated[str, o.option("title of the page", metavar="TEXT")] = "Calibration report",
    data: o.Data = None,
    images: Annotated[int, o.option("images of each kind per data set, 0 for none")] = 6,
    methods: o.ChosenMethods = None,
    seeds: o.ChosenSeeds = None,
    bins: o.Bins = None,
    side: o.Side = None,
) -> int:
    """Make one HTML file of runs, of one model or several: summary, sortable tables, reliability diagrams, images,
    settings. It needs no network and no other file."""
    from otpt.report import open_models
    from otpt.report.page import make_page, write_page

    if out.suffix.lower() not in (".html", ".htm"):
        raise OtptError(f"The page cannot be written to {str(out)!r}; expected a name that ends in .html.")
    o.check_run_folders(runs)
    models = open_models(runs, n_bins=bins, side=side, seeds=seeds, methods=methods)
    page = make_page(
        models,
        title=title,
        root=data,
        images=images,
        command=shlex.join(command_line()),
    )
    write_page(out, page)
    print(f"The page is in {str(out)!r} ({len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB).")
    for run, done, total in (each for results in models.values() for each in results.progress):
        print(f"It is not complete: the run {str(run.folder)!r} has {done} of {total} images.")
    return 0
