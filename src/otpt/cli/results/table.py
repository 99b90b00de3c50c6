"""``otpt table RUN… --layout main --paper``: the paper's tables, from your own runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.notes import say
from otpt.cli.options.scoring import add_bins_options, add_intervals_option
from otpt.cli.options.spellings import add_methods_option, add_old_spelling, add_out_option, add_seeds_option
from otpt.errors import OtptError, unknown
from otpt.files import write_atomically
from otpt.report.papers.paper import BACKBONES
from otpt.report.papers.published import PAPERS
from otpt.report.tables.formats import FORMATS, render
from otpt.report.tables.layouts import LAYOUTS

if TYPE_CHECKING:
    from otpt.report.results import Results
    from otpt.report.tables.beside import Beside
    from otpt.report.tables.table import Table

OTPT = "otpt"
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
    parser.add_argument(
        "--paper",
        nargs="?",
        type=_paper,
        const=OTPT,
        metavar="NAME",
        help=f"add the numbers of a paper and the difference: {', '.join((OTPT, *PAPERS))} (default: {OTPT})",
    )
    parser.add_argument(
        "--paper-backbone",
        choices=BACKBONES,
        help="which numbers of the paper (default: those for the backbone of the runs)",
    )
    add_old_spelling(parser, "--backbone", "--paper-backbone", dest="paper_backbone", choices=BACKBONES)
    add_intervals_option(parser)
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="in this order (default: those of the layout)")
    add_methods_option(parser, default=None, words="in this order (default: those of the layout)")
    parser.add_argument("--prompt", metavar="WORDS", help="which of several prompts")
    add_seeds_option(parser, default=None, words="only these seeds of the views")
    add_bins_options(parser)
    parser.add_argument(
        "--format", choices=FORMATS, help="output format (default: by the suffix of --out, or terminal)"
    )
    add_out_option(parser, metavar="FILE", words="output file (.md, .csv, .tex, .json, .txt)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the table and print or write it."""
    from otpt.report import open_results

    results = open_results(
        options.folders,
        bins=options.bins,
        side=options.side,
        seeds=options.seeds,
        one_backbone=options.layout != "medical",
    )
    write = _beside(results, options) if options.paper in PAPERS else _in_layout(results, options)
    if options.out is None:
        print(_for_output(write, options.format or "terminal"), end="")
    else:
        form = options.format or _SUFFIXES.get(options.out.suffix.lower())
        if form is None:
            raise OtptError(
                f"The file {str(options.out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or "
                "--format."
            )
        write_atomically(options.out, write(form, colour=False).encode())
    for each in results.partial:
        say(f"the run {str(each.run.folder)!r} is in progress: {each.done} of {each.all} images are done")
    return 3 if results.partial else 0


def print_tables(tables: list[Table]) -> None:
    """On the terminal, or as plain lines."""
    print(_for_output(partial(render, tables), "terminal"), end="")


def print_beside(tables: list[Beside]) -> None:
    """On the terminal, or as plain lines."""
    from otpt.report.tables.beside_formats import render_beside

    print(_for_output(partial(render_beside, tables), "terminal"), end="")


def _for_output(write: Callable[..., str], form: str) -> str:
    from rich.console import Console

    console = Console()
    width = console.width if console.is_terminal else None
    return write(form, colour=console.is_terminal and not console.no_color, width=width)


def _paper(name: str) -> str:
    if name in (OTPT, *PAPERS):
        return name
    hint = " Run folders stand before --paper." if os.path.isdir(name) else ""
    raise argparse.ArgumentTypeError(f"{unknown('paper', name, (OTPT, *PAPERS))}{hint}".rstrip("."))


def _in_layout(results: Results, options: argparse.Namespace) -> Callable[..., str]:
    from otpt.report.tables.building import Choice, build_tables

    choice = Choice(
        datasets=options.datasets,
        methods=options.methods,
        prompt=options.prompt,
        paper=_paper_backbone(results, options) if options.paper or options.paper_backbone else None,
        level=options.intervals,
        metrics=options.metrics,
    )
    return partial(render, build_tables(results, options.layout, choice))


def _beside(results: Results, options: argparse.Namespace) -> Callable[..., str]:
    from otpt.report.papers.published import get_paper
    from otpt.report.tables.beside import Subset, set_beside
    from otpt.report.tables.beside_formats import render_beside

    own = {
        "--layout": options.layout != "main",
        "--metrics": options.metrics,
        "--paper-backbone": options.paper_backbone,
        "--intervals": options.intervals,
    }
    for option, given in own.items():
        if given:
            raise OtptError(
                f"{option} goes with tables in the O-TPT paper's layouts; leave it out with --paper {options.paper}."
            )
    subset = Subset(options.datasets, options.methods, options.prompt)
    return partial(render_beside, set_beside(results, get_paper(options.paper), subset))


def _paper_backbone(results: Results, options: argparse.Namespace) -> str:
    from otpt.report.tables.building import guess_backbone

    found = options.paper_backbone or guess_backbone(results)
    if found is None and options.layout == "medical":
        return BACKBONES[0]  # its tables have backbones of their own
    if found is None:
        name = results.runs[0].config["backbone"]["name"]
        raise OtptError(
            f"The paper has no numbers of the backbone {name!r}; choose whose to show with "
            f"--paper-backbone {' or --paper-backbone '.join(BACKBONES)}."
        )
    return str(found)
