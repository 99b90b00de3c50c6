"""``otpt metrics RUN``: metrics of runs, from their rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import otpt
from otpt.cli import options as o
from otpt.cli.results import say_in_progress
from otpt.cli.terminal import plural, print_json, print_table, terminal_width
from otpt.errors import OtptError
from otpt.files import csv_cell, write_atomically

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ["dataset", "seed", "prompt", "method", "variant"]


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
    import pandas as pd

    from otpt.cli.labels import label_runs, show_labels

    count, level = o.optional(confusions, 10), o.optional(intervals, 0.95)
    if out is not None and per_class and count is not None:
        raise OtptError("--per-class and --confusions are two tables; give --out with one of them.")
    if not runs:
        raise OtptError("No run was given; expected run folders of 'otpt evaluate'.")
    if labels := label_runs(runs):
        return show_labels(labels, out=out, as_json=json, n_bins=which.bins)
    opened = [which.open([run], methods=which.methods) for run in runs]
    shown: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    for results in opened:
        own = {"run": str(results.runs[0].folder), "backbone": results.model}
        found: dict[str, pd.DataFrame] = {}
        if per_class:
            found["classes"] = otpt.report.per_class(results)
        if count is not None:
            found["confusions"] = otpt.report.confusions(results, count)
        if not found:
            found["scores"] = results.frame.drop(columns=["run", "model", "partial"])
            if not results.partial and which.bins is None and which.side is None:
                otpt.runs.write_metrics(results.runs[0])
        data: dict[str, Any] = {name: records(frame) for name, frame in found.items()}
        if level is not None and "scores" in found:
            tables = otpt.report.metric_tables(results, metrics=metrics, level=level)
            data["intervals"] = [each.to_dict() for each in tables]
        frames += [frame.assign(**own) for frame in found.values()]
        shown.append({**own, **data})
        if not json and out is None:
            if len(opened) > 1:
                print(f"{own['run']} ({own['backbone']})")
            _print(results, found, metrics, level)
    if out is not None:
        write_csv(out, pd.concat(frames, ignore_index=True))
        print(f"The numbers of {plural(len(opened), 'run')} are in {str(out)!r}.")
    elif json:
        print_json(shown[0] if len(shown) == 1 else {"runs": shown})
    return max(say_in_progress(results.runs) for results in opened)


def _print(
    results: otpt.report.Results, found: dict[str, pd.DataFrame], metrics: o.Several, level: float | None
) -> None:
    if "scores" in found:
        tables = otpt.report.metric_tables(results, metrics=metrics, level=level)
        print(otpt.report.render(tables, "terminal", width=terminal_width()), end="")
        if metrics is None and level is None:
            print_summary(results)
    for kind in ("classes", "confusions"):
        for (dataset, seed, _, method, _), rows in found[kind].groupby(_KEYS, sort=False) if kind in found else ():
            title = f"{dataset}, seed {seed}, {method}"
            if kind == "classes":
                own = rows[rows["images"] > 0].sort_values("accuracy", kind="stable")
                head, names, share = (title, "images", "accuracy %"), own["class"], own["accuracy"]
            else:
                own, names = rows, rows["label"] + " → " + rows["prediction"]
                head, share = (f"{title}: label → prediction", "images", "% of the class"), own["fraction"]
            print_table(head, zip(names, own["images"].map(str), (100 * share).map("{:.1f}".format), strict=True))
            print()


def print_summary(results: otpt.report.Results) -> None:
    """Print one table of the most important metrics, and coverage and size of prediction sets if there are any."""
    from otpt.report.formats import text_table
    from otpt.report.tables import set_table

    print(otpt.report.evaluation_table(results).to_text(terminal_width() or 80))
    if not (sets := set_table(results)).empty:
        print(text_table(sets, 2, terminal_width()), end="\n\n")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain data; nan is None."""
    plain = frame.astype(object)
    return list(plain.where(plain.notna(), None).to_dict("records"))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV file whose cells no spreadsheet computes."""
    names = frame.select_dtypes(exclude="number").columns
    frame[names] = frame[names].map(lambda cell: csv_cell(cell) if isinstance(cell, str) else cell)
    write_atomically(path, frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace"))
