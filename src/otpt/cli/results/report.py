"""``otpt report RUNS… -o report.html``: one self-contained page to share."""

from __future__ import annotations

import argparse
from pathlib import Path

from otpt.cli.options.scoring import add_bins_options
from otpt.cli.options.spellings import add_methods_option, add_out_option, add_seeds_option
from otpt.errors import OtptError

TITLE, IMAGES = "Calibration report", 6

_SUFFIXES = (".html", ".htm")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``report``."""
    parser.description = (
        "Make one HTML file from run folders: summary, sortable tables, reliability diagrams, images, "
        "settings. Runs of several models are set side by side. The file needs no network and no other file."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders, of one model or of several")
    add_out_option(parser, metavar="FILE", words="(default: %(default)s)", default=Path("report.html"))
    parser.add_argument("--title", default=TITLE, help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets, for thumbnails")
    parser.add_argument(
        "--images",
        type=int,
        default=IMAGES,
        metavar="N",
        help="images of each kind per data set, 0 for none (default: %(default)s)",
    )
    add_methods_option(parser, default=None, words="only these methods of the runs")
    add_seeds_option(parser, default=None, words="only these seeds of the views")
    add_bins_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the page and say where it is."""
    from otpt.report import open_models
    from otpt.report.page import make_page, write_page

    if options.out.suffix.lower() not in _SUFFIXES:
        raise OtptError(f"The page {str(options.out)!r} is an HTML file; expected a name that ends in .html.")
    models = open_models(
        options.folders, n_bins=options.bins, side=options.side, seeds=options.seeds, methods=options.methods
    )
    page = make_page(
        models, title=options.title, root=options.data, images=options.images, command=options.command_line
    )
    write_page(options.out, page)
    print(f"The page is in {str(options.out)!r} ({_size(len(page.encode('utf-8', 'replace')))}).")
    for found, done, total in (each for results in models.values() for each in results.progress):
        print(f"It is not complete: the run {str(found.folder)!r} has {done} of {total} images.")
    return 0


def _size(count: int) -> str:
    """Bytes in the unit that shows a digit of them."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.0f} kB"
