"""``otpt table RUN… --layout main --paper``: the paper's tables, from your own runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.report.defaults import LEVEL
from otpt.report.papers.paper import BACKBONES
from otpt.report.tables.formats import FORMATS, render
from otpt.report.tables.layouts import LAYOUTS
from otpt.runs.format import SIDES

if TYPE_CHECKING:
    from otpt.report.results import Results
    from otpt.report.tables.table import Table

_SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "terminal"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``table``."""
    parser.description = (
        "Make a table of one or several runs in a layout of the paper, with averages and marked best "
        "values, optionally with the paper's numbers. Exit code 3 if a run is incomplete."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--layout", default="main", metavar="NAME", help=f"{', '.join(LAYOUTS)} (default: %(default)s)")
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="such as ece debiased_ece aurc (default: those of the layout)"
    )
    parser.add_argument("--paper", action="store_true", help="add the paper's numbers and the difference")
    parser.add_argument(
        "--backbone", choices=BACKBONES, help="which numbers of the paper (default: those for the backbone of the runs)"
    )
    parser.add_argument(
        "--intervals",
        nargs="?",
        type=float,
        const=LEVEL,
        metavar="LEVEL",
        help=f"bootstrap intervals, of {100 * LEVEL:g} %% by default",
    )
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="in this order (default: those of the layout)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="in this order (default: those of the layout)")
    parser.add_argument("--prompt", metavar="WORDS", help="which of several prompts")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="only these")
    parser.add_argument(
        "--bins", type=int, metavar="M", help="bins of the calibration errors, at most 100 (default: as in the runs)"
    )
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
    parser.add_argument(
        "--format", choices=FORMATS, help="output format (default: by the suffix of --out, or terminal)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="output file (.md, .csv, .tex, .json, .txt)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the table and print or write it."""
    from otpt.report import open_results
    from otpt.report.tables.building import Choice, build_tables

    results = open_results(
        options.folders,
        bins=options.bins,
        side=options.side,
        seeds=options.seeds,
        one_backbone=options.layout != "medical",
    )
    choice = Choice(
        datasets=options.datasets,
        methods=options.methods,
        prompt=options.prompt,
        paper=_paper_backbone(results, options) if options.paper or options.backbone else None,
        level=options.intervals,
        metrics=options.metrics,
    )
    tables = build_tables(results, options.layout, choice)
    if options.out is None:
        print(_for_output(tables, options.format or "terminal"), end="")
    else:
        form = options.format or _SUFFIXES.get(options.out.suffix.lower())
        if form is None:
            raise OtptError(
                f"The file {str(options.out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or "
                "--format."
            )
        write_atomically(options.out, render(tables, form).encode())
    for partial in results.partial:
        print(
            f"otpt: the run {str(partial.run.folder)!r} is in progress: {partial.done} of {partial.all} images are "
            "done",
            file=sys.stderr,
        )
    return 3 if results.partial else 0


def print_tables(tables: list[Table]) -> None:
    """On the terminal, or as plain lines."""
    print(_for_output(tables, "terminal"), end="")


def _for_output(tables: list[Table], form: str) -> str:
    from rich.console import Console

    console = Console()
    return render(tables, form, colour=console.is_terminal and not console.no_color)


def _paper_backbone(results: Results, options: argparse.Namespace) -> str:
    from otpt.report.tables.building import guess_backbone

    found = options.backbone or guess_backbone(results)
    if found is None and options.layout == "medical":
        return BACKBONES[0]  # its tables have backbones of their own
    if found is None:
        name = results.runs[0].config["backbone"]["name"]
        raise OtptError(
            f"The paper has no numbers of the backbone {name!r}; choose whose to show with --backbone "
            f"{' or --backbone '.join(BACKBONES)}."
        )
    return str(found)
