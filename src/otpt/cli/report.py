"""``otpt report RUNS… -o report.html``: one page to share, whole in itself."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from otpt.errors import OtptError
from otpt.evaluation.format import SIDES
from otpt.report.page.defaults import PICTURES, TITLE

_SUFFIXES = (".html", ".htm")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``report``."""
    parser.description = (
        "Make one HTML file from run folders: summary, sortable tables, reliability diagrams, pictures, "
        "settings. It needs no network and no other file."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    parser.add_argument("--title", default=TITLE, help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder that holds the data sets, for thumbnails")
    parser.add_argument(
        "--pictures", type=int, default=PICTURES, metavar="N", help="of each kind and data set, 0 for none (default: 6)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="only these seeds of the views")
    parser.add_argument("--bins", type=int, metavar="M", help="in place of the runs' own, 100 at most")
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the page and say where it is."""
    from otpt.report import open_results
    from otpt.report.page import make_page, write_page

    if options.out.suffix.lower() not in _SUFFIXES:
        raise OtptError(f"The page {str(options.out)!r} is to be HTML; expected a name that ends in .html.")
    results = open_results(options.folders, bins=options.bins, side=options.side, seeds=options.seeds)
    page = make_page(
        results, title=options.title, root=options.data, pictures=options.pictures, command=_command(options)
    )
    write_page(options.out, page)
    print(f"The page is in {str(options.out)!r} ({len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB).")
    for progress in results.partial:
        print(f"It is not complete: the run {str(progress.run.folder)!r} has {progress.done} of {progress.all} parts.")
    return 0


def _command(options: argparse.Namespace) -> str:
    """The command that makes the page again."""
    words = ["otpt", "report", *map(str, options.folders), "-o", str(options.out)]
    if options.title != TITLE:
        words += ["--title", options.title]
    if options.pictures != PICTURES:
        words += ["--pictures", str(options.pictures)]
    for name in ("data", "bins", "side"):
        if getattr(options, name) is not None:
            words += [f"--{name}", str(getattr(options, name))]
    return shlex.join([*words, *(["--seeds", *map(str, options.seeds)] if options.seeds else [])])
