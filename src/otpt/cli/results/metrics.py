"""``otpt metrics RUN…``: every metric of runs, recomputed from their stored rows; also class by class, also as CSV."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import say
from otpt.cli.options.scoring import add_bins_options, add_intervals_option
from otpt.cli.options.spellings import add_methods_option, add_out_option, add_seeds_option
from otpt.cli.results import class_metrics
from otpt.cli.terminal import terminal_width
from otpt.errors import OtptError
from otpt.files import csv_cell, write_atomically

if TYPE_CHECKING:
    from otpt.report import Results
    from otpt.runs import Run

CONFUSIONS = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``metrics``."""
    parser.description = (
        "Recompute the metrics of runs from their stored rows and write them. With "
        "--bins or --side they are only printed. Of several data sets, accuracy, ECE, debiased ECE and SCE are shown; "
        "choose others with --metrics, or see all with --json or -o FILE.csv."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
    add_bins_options(parser)
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help="only these, by their names in the JSON, such as ece aurc auroc"
    )
    add_methods_option(parser, default=None, words="only these methods of the runs")
    add_seeds_option(parser, default=None, words="only these seeds of the views")
    add_intervals_option(parser)
    parser.add_argument("--per-class", action="store_true", help="accuracy of each class, the hardest first")
    parser.add_argument(
        "--confusions",
        nargs="?",
        type=int,
        const=CONFUSIONS,
        metavar="N",
        help=f"the N pairs of classes that are confused most, {CONFUSIONS} by default",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_out_option(parser, metavar="FILE", words="one CSV over all runs, a row per data set, seed, prompt and method")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compute and print; exit code 3 if a run is not complete."""
    import pandas as pd

    from otpt.report import open_results

    _check(options)
    opened = [
        open_results([folder], n_bins=options.bins, side=options.side, seeds=options.seeds, methods=options.methods)
        for folder in options.folders
    ]
    shown = [_of_run(each, options) for each in opened]
    if options.out is not None:
        rows = pd.concat([each["rows"] for each in shown], ignore_index=True)
        names = rows.select_dtypes(exclude="number").columns
        rows[names] = rows[names].map(lambda text: csv_cell(text) if isinstance(text, str) else text)
        write_atomically(options.out, rows.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace"))
        print(f"The numbers of {len(opened)} run{'s' * (len(opened) > 1)} are in {str(options.out)!r}.")
    elif options.json:
        several = [{"run": str(each.runs[0].folder), **data} for each, data in zip(opened, shown, strict=True)]
        print(json.dumps(shown[0] if len(opened) == 1 else {"runs": several}, indent=2, ensure_ascii=False))
    missing = [progress for each in opened for progress in each.progress]
    for found, done, total in missing:
        name = "the run" if len(opened) == 1 else f"the run {str(found.folder)!r}"
        say(f"{name} is not complete: {total - done} of {total} images are missing; repeat its command to continue")
    return 3 if missing else 0


def _check(options: argparse.Namespace) -> None:
    if options.out is not None and options.out.suffix.lower() != ".csv":
        raise OtptError(f"The numbers cannot be written to {str(options.out)!r}; expected a name that ends in .csv.")
    if options.out is not None and options.per_class and options.confusions is not None:
        raise OtptError("--per-class and --confusions are two tables; give -o with one of them.")
    if options.confusions is not None and options.confusions < 1:
        raise OtptError(f"--confusions was given {options.confusions}; expected 1 or more.")


def _of_run(results: Results, options: argparse.Namespace) -> dict[str, Any]:
    """What is asked of a run: printed, or as data for ``--json``, or ``rows`` of the CSV."""
    from otpt.report import confusions, evaluation_table, metric_tables, per_class, render
    from otpt.report.formats import text_table
    from otpt.report.tables import set_table
    from otpt.runs import score_run, write_metrics

    run: Run = results.runs[0]
    silent = options.json or options.out is not None
    if not silent and len(options.folders) > 1:
        print(f"{run.folder} ({results.model})")
    own = {"run": str(run.folder), "backbone": results.model}
    data: dict[str, Any] = {}
    rows = None
    if options.per_class:
        rows = per_class(results)
        data["classes"] = records(rows)
        if not silent:
            class_metrics.print_per_class(data["classes"])
    if options.confusions is not None:
        rows = confusions(results, options.confusions)
        data["confusions"] = records(rows)
        if not silent:
            class_metrics.print_confusions(data["confusions"])
    if rows is None:
        rows = results.frame.drop(columns=["run", "model", "partial"])
        data = {"scores": records(rows)}
        if not results.partial and options.bins is None and options.side is None:
            write_metrics(run, score_run(run))
        if options.intervals is not None and silent:
            data["intervals"] = [
                t.to_dict() for t in metric_tables(results, metrics=options.metrics, level=options.intervals)
            ]
        if not silent:
            tables = metric_tables(results, metrics=options.metrics, level=options.intervals)
            print(render(tables, "terminal", width=terminal_width()), end="")
            if options.metrics is None and options.intervals is None:
                print(evaluation_table(results).to_text(terminal_width() or 80), end="")
            if not (sets := set_table(results)).empty:
                print(text_table(sets, 2, terminal_width()))
    return {"rows": rows.assign(**own)} if options.out is not None else data


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows as plain data; nan is None."""
    plain = frame.astype(object)
    return list(plain.where(plain.notna(), None).to_dict("records"))
