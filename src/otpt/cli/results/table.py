"""``otpt table RUN… --layout main --paper``: the paper's tables, from your own runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.notes import say
from otpt.cli.options.scoring import add_bins_options, add_intervals_option
from otpt.cli.options.spellings import add_methods_option, add_old_spelling, add_out_option, add_seeds_option
from otpt.cli.terminal import terminal_width
from otpt.errors import OtptError, unknown
from otpt.files import write_atomically
from otpt.report import FORMATS, LAYOUTS, PAPERS, build_tables, compare_with_paper, open_results, render
from otpt.report.papers import BACKBONES, OTPT
from otpt.report.tables import guess_backbone

if TYPE_CHECKING:
    from otpt.report import Results, Table

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
        help=f"add the numbers of a paper and the difference: {', '.join(PAPERS)} (default: {OTPT})",
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
    results = open_results(
        options.folders,
        n_bins=options.bins,
        side=options.side,
        seeds=options.seeds,
        one_backbone=options.layout != "medical",
    )
    other = options.paper is not None and options.paper != OTPT
    tables = _with_paper(results, options) if other else _in_layout(results, options)
    if options.out is None:
        print(render(tables, options.format or "terminal", width=terminal_width()), end="")
    else:
        form = options.format or _SUFFIXES.get(options.out.suffix.lower())
        if form is None:
            raise OtptError(
                f"The file {str(options.out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or "
                "--format."
            )
        write_atomically(options.out, render(tables, form).encode())
    for run, done, total in results.progress:
        say(f"the run {str(run.folder)!r} is in progress: {done} of {total} images are done")
    return 3 if results.partial else 0


def print_tables(tables: list[Table]) -> None:
    """On the terminal, or as plain lines."""
    print(render(tables, "terminal", width=terminal_width()), end="")


def _paper(name: str) -> str:
    if name in PAPERS:
        return name
    hint = " Run folders stand before --paper." if os.path.isdir(name) else ""
    raise argparse.ArgumentTypeError(f"{unknown('paper', name, PAPERS)}{hint}".rstrip("."))


def _in_layout(results: Results, options: argparse.Namespace) -> list[Table]:
    return build_tables(
        results,
        options.layout,
        datasets=options.datasets,
        methods=options.methods,
        metrics=options.metrics,
        prompt=options.prompt,
        paper=_paper_backbone(results, options) if options.paper or options.paper_backbone else None,
        level=options.intervals,
    )


def _with_paper(results: Results, options: argparse.Namespace) -> list[Table]:
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
    return compare_with_paper(
        results, options.paper, datasets=options.datasets, methods=options.methods, prompt=options.prompt
    )


def _paper_backbone(results: Results, options: argparse.Namespace) -> str:
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
