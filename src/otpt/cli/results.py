"""Read results: ``otpt metrics``, ``compare``, ``table`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd

from otpt.cli import options as o
from otpt.cli.labels import label_runs, label_table_text, show_labels
from otpt.cli.summaries import frame_csv, frame_rows, print_summary, say_in_progress, write_csv
from otpt.cli.terminal import command_line, plural, print_json, print_table, terminal_width
from otpt.errors import OtptError
from otpt.files import as_json, write_atomically
from otpt.report import (
    Reference,
    Results,
    Selection,
    compare_with_others,
    comparison_frame,
    comparison_notes,
    comparison_table,
    confusions,
    get_layout,
    get_reference,
    metric_tables,
    open_models,
    per_class,
    ranked,
    render,
)
from otpt.report.formats import render_strings
from otpt.report.page import make_page, write_page
from otpt.runs import write_metrics

_SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "text"}
_KEYS = ["dataset", "seed", "prompt", "method", "variant"]

Format = Annotated[
    Literal["text", "markdown", "csv", "latex", "json"] | None,
    o.option("format (default: by the suffix of --out, or text)"),
]


def compare(
    *runs: o.Runs,
    resamples: Annotated[int | None, o.option("bootstrap resamples (default: 1000, more for many methods)")] = None,
    level: Annotated[float, o.option("confidence level of the intervals")] = 0.95,
    format: Format = None,
    json: o.Json = False,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
    which: o.SelectionOptions = o.SelectionOptions(),
) -> int:
    """Compare the first of --methods with each of the others image by image (default: the two with the lowest ECE):
    accuracy by the exact McNemar test, calibration errors, Brier score and NLL by a paired bootstrap; for each data set
    and over all, seeds averaged. With several others, p-values are corrected (Holm).

    otpt compare runs/main --methods o-tpt c-tpt
    otpt compare runs/main --methods mine zero-shot tpt o-tpt --out comparison.tex
    """
    form = format_of(format, out, "json" if json else "text")
    results = which.open(runs)
    first, others, lowest = _pick(results, which.methods or (), which.datasets, which.prompt)
    comparisons = compare_with_others(
        results, first, others, datasets=which.datasets, prompt=which.prompt, resamples=resamples, level=level
    )
    if form == "json":
        rows = [comparison.as_dict() for comparison in comparisons]
        facts = {"method": first, "others": others, "seeds": results.seeds, "level": level}
        text = as_json({**facts, "comparisons": rows}).decode()
    elif form == "csv":
        text = frame_csv(comparison_frame(comparisons))
    else:
        notes = [*comparison_notes(comparisons), *([lowest] if lowest else [])]
        width = (terminal_width() or 150) if out is None else None
        strings = comparison_table(comparisons, level)
        title = f"{first} against {', '.join(others)}"
        text = render_strings(strings, 2 + (len(others) > 1), form, title, notes, width=width)
    write_text(text, out)
    return 0


def format_of(format: str | None, out: Path | None, default: str = "text") -> str:
    """Return the format of a table: the given one, or that of the suffix of the file."""
    form = format or (default if out is None else _SUFFIXES.get(out.suffix.lower()))
    if form is None:
        raise OtptError(f"{str(out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or --format.")
    return form


def _pick(
    results: Results, methods: Sequence[str], datasets: Sequence[str] | None, prompt: str | None
) -> tuple[str, tuple[str, ...], str]:
    """Return a method, those that it is compared with, and a sentence if another one has a lower ECE than all."""
    names = [name for name in datasets or results.datasets if name in results.datasets]
    error = ranked(results, "ece", datasets=names, prompt=prompt)
    candidates = [*methods, *(name for name in error if name not in methods)]
    if len(candidates) < 2:
        raise OtptError(f"The runs hold {len(candidates)} method with all data sets under one prompt; name two.")
    first, *others = methods if len(methods) > 1 else candidates[:2]
    compared = (first, *others)
    best = next(iter(error), first)
    if best in compared or not set(compared) <= set(error):
        return first, tuple(others), ""
    errors = " and ".join(f"{100 * error[name]:.2f} % of {name}" for name in compared)
    return first, tuple(others), f"{best} has the lowest ECE: {100 * error[best]:.2f} %, against {errors}."


@o.option_group("Options")
class PaperOptions(o.Options):
    """Published numbers next to those of the runs."""

    paper: Annotated[
        o.Several,
        o.option(
            "add a paper's numbers, by default O-TPT's; a wrong name lists all",
            consume_multiple=(0, 1),
            metavar="[NAME]",
        ),
    ] = None
    paper_backbone: Annotated[
        str | None,
        o.option("which numbers of the paper, such as RN50 (default: by the runs)", metavar="NAME"),
    ] = None

    def reference(self) -> Reference | None:
        """Return the published numbers, or None if no option asks for them."""
        if self.paper is None and self.paper_backbone is None:
            return None
        return get_reference(self.paper[0] if self.paper else None)


def table(
    *runs: o.Runs,
    layout: Annotated[
        str | None, o.option("layout of the table; a wrong name lists all (default: main)", metavar="NAME")
    ] = None,
    metrics: Annotated[o.Several, o.option("such as ece aurc (default: the layout's)", metavar="NAME")] = None,
    paper: PaperOptions = PaperOptions(),
    intervals: o.Intervals = None,
    format: Format = None,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
    which: o.SelectionOptions = o.SelectionOptions(),
) -> int:
    """Make a table of runs in a layout of the paper, with averages and marked best values, optionally with a paper's
    numbers and the difference. Exit code 3 if a run is incomplete.

    otpt table runs/main --paper
    otpt table runs/* --metrics accuracy debiased_ece --out table.tex
    """
    form = format_of(format, out)
    reference = paper.reference()
    chosen = get_layout(layout)
    labelled = label_runs(runs)
    if labelled:
        write_text(label_table_text(labelled, form, n_bins=which.bins), out)
        return say_in_progress(labelled)
    selection = Selection(which.datasets, which.methods, metrics, which.prompt, o.optional(intervals, 0.95))
    results = which.open(runs, one_backbone=not chosen.mixes_models)
    if reference is None:
        tables = chosen.tables(results, selection)
    else:
        tables = reference.tables(results, selection, layout=layout, backbone=paper.paper_backbone)
    write_text(render(tables, form, width=terminal_width() if out is None else None), out)
    return say_in_progress(results.runs)


def write_text(text: str, out: Path | None) -> None:
    """Print a text, or write it to a file."""
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())


def report(
    *runs: o.Runs,
    out: Annotated[Path, o.out("the page", "FILE", "html", "htm")] = Path("report.html"),
    title: Annotated[str, o.option("title of the page", metavar="TEXT")] = "Calibration report",
    data: o.Data = None,
    images: Annotated[int, o.option("images of each kind per data set, 0 for none")] = 6,
    explain: Annotated[
        o.Numbers,
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
    labelled = label_runs(runs)
    if labelled:
        return show_labels(labelled, out=out, n_bins=which.bins, title=title)
    models = open_models(runs, n_bins=which.bins, side=which.side, seeds=which.seeds, methods=which.methods)
    maps = o.optional(explain, 3) or 0
    page = make_page(models, title=title, root=data, images=images, explain=maps, command=command_line())
    write_page(out, page)
    print(f"The page is in {str(out)!r} ({len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB).")
    for results in models.values():
        say_in_progress(results.runs)
    return 0


def metrics(
    *runs: o.Runs,
    metrics: Annotated[o.Several, o.option("only these, such as ece aurc auroc", metavar="NAME")] = None,
    intervals: o.Intervals = None,
    per_class: Annotated[bool, o.option("accuracy of each class, the hardest first")] = False,
    confusions: Annotated[
        o.Numbers,
        o.option(
            "the N most confused pairs of classes, 10 by default", at_least=1, consume_multiple=(0, 1), metavar="[N]"
        ),
    ] = None,
    json: o.Json = False,
    out: Annotated[
        Path | None, o.out("write a CSV, one row per data set, seed, prompt and method", "FILE", "csv")
    ] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Recompute the metrics of runs from their rows and store them; with --bins or --side they are only printed. Exit
    code 3 if a run is incomplete.

    otpt metrics runs/main
    otpt metrics runs/main --metrics ece aurc --intervals
    otpt metrics runs/main --per-class --out classes.csv
    """
    pairs = o.optional(confusions, 10)
    level = o.optional(intervals, 0.95)
    if out is not None and per_class and pairs is not None:
        raise OtptError("--per-class and --confusions are two tables; give --out with one of them.")
    if not runs:
        raise OtptError("No run was given; expected run folders of 'otpt evaluate'.")
    labelled = label_runs(runs)
    if labelled:
        return show_labels(labelled, out=out, as_json=json, n_bins=which.bins)
    opened = [which.open([run], methods=which.methods) for run in runs]
    shown: list[dict[str, object]] = []
    rows: list[pd.DataFrame] = []
    for results in opened:
        facts = {"run": str(results.runs[0].folder), "backbone": results.model}
        frames = _metric_frames(results, per_class, pairs)
        if "scores" in frames and not results.partial and which.bins is None and which.side is None:
            write_metrics(results.runs[0])
        values: dict[str, object] = {name: frame_rows(frame) for name, frame in frames.items()}
        if level is not None and "scores" in frames:
            tables = metric_tables(results, metrics=metrics, level=level)
            values["intervals"] = [table.to_dict() for table in tables]
        rows += [frame.assign(**facts) for frame in frames.values()]
        shown.append({**facts, **values})
        if not json and out is None:
            if len(opened) > 1:
                print(f"{facts['run']} ({facts['backbone']})")
            _print_metrics(results, frames, metrics, level)
    if out is not None:
        write_csv(out, pd.concat(rows, ignore_index=True))
        print(f"The numbers of {plural(len(opened), 'run')} are in {str(out)!r}.")
    elif json:
        print_json(shown[0] if len(shown) == 1 else {"runs": shown})
    return max(say_in_progress(results.runs) for results in opened)


def _metric_frames(results: Results, by_class: bool, pairs: int | None) -> dict[str, pd.DataFrame]:
    """Return the requested data frames, or that of all scores."""
    frames: dict[str, pd.DataFrame] = {}
    if by_class:
        frames["classes"] = per_class(results)
    if pairs is not None:
        frames["confusions"] = confusions(results, pairs)
    return frames or {"scores": results.frame.drop(columns=["run", "model", "partial"])}


def _print_metrics(results: Results, frames: dict[str, pd.DataFrame], metrics: o.Several, level: float | None) -> None:
    if "scores" in frames:
        tables = metric_tables(results, metrics=metrics, level=level)
        print(render(tables, "text", width=terminal_width()), end="")
        if metrics is None and level is None:
            print_summary(results)
    if "classes" in frames:
        for (dataset, seed, _, method, _), rows in frames["classes"].groupby(_KEYS, sort=False):
            hardest = rows[rows["images"] > 0].sort_values("accuracy", kind="stable")
            head = (f"{dataset}, seed {seed}, {method}", "images", "accuracy %")
            _print_shares(head, hardest["class"], hardest["images"], hardest["accuracy"])
    if "confusions" in frames:
        for (dataset, seed, _, method, _), rows in frames["confusions"].groupby(_KEYS, sort=False):
            head = (f"{dataset}, seed {seed}, {method}: label → prediction", "images", "% of the class")
            _print_shares(head, rows["label"] + " → " + rows["prediction"], rows["images"], rows["fraction"])


def _print_shares(head: Sequence[str], names: pd.Series, images: pd.Series, shares: pd.Series) -> None:
    print_table(head, zip(names, images.map(str), (100 * shares).map("{:.1f}".format), strict=True))
    print()
