"""``otpt decide``: confidence thresholds for requested error rates, from labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd

from otpt.bulk import LabelledPredictions, read_labelled
from otpt.calibration import OperatingPoint, Point, operating_points
from otpt.calibration.operating_points import RISKS, least_risk
from otpt.cli import options as o
from otpt.cli.results import Format, format_of, write_text
from otpt.cli.summaries import frame_csv
from otpt.cli.terminal import terminal_width
from otpt.errors import OtptError
from otpt.files import as_json
from otpt.report import open_results
from otpt.report.figures import draw_operating_points, save
from otpt.report.formats import NOTHING, render_strings

_HEADS = ("confidence >", "answered %", "errors %", "95 %")


@o.option_group("Labels")
class TruthOptions(o.Options):
    """Where the true labels of a file of predictions are."""

    labels: Annotated[
        Path | None, o.option("table of path and label of the images, if the file has no true labels", metavar="FILE")
    ] = None
    truth: Annotated[
        str | None, o.option("column of the true labels (default: true_label, truth, target or correct)")
    ] = None


@o.option_group("Options")
class RowOptions(o.Options):
    """Which rows are used."""

    method: Annotated[str | None, o.option("method, if there are several", "--methods", "--method", metavar="NAME")] = (
        None
    )
    dataset: Annotated[
        str | None, o.option("data set of a run with several", "--datasets", "--dataset", metavar="NAME")
    ] = None
    seed: Annotated[int | None, o.seeds("seed of a run (default: the first)")] = None


def decide(
    file: Annotated[
        Path, o.option("predictions of 'otpt predict' (.csv, .jsonl, .parquet) with true labels, or a run folder")
    ],
    /,
    *,
    risks: Annotated[
        tuple[float, ...],
        o.option("fractions of errors that are accepted among the answered images", "--risks", "--risk"),
    ] = RISKS,
    guarantee: Annotated[float, o.option("probability with which a guaranteed threshold holds")] = 0.95,
    figure: Annotated[
        Path | None, o.figure("risk against coverage with the thresholds: .png, .svg, .pdf", "--figure")
    ] = None,
    format: Format = None,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
    truth: TruthOptions = TruthOptions(),
    rows: RowOptions = RowOptions(),
) -> int:
    """Choose the confidence above which predictions are used. For each accepted risk: the threshold that is guaranteed
    on new images, and the one that just meets it on these labels, each with the share of images that is answered and
    the errors among them.

    otpt decide predictions.csv --labels labels.csv --risks 0.05 0.1 --figure decide.png
    otpt decide runs/main --methods o-tpt --datasets dtd
    """
    form = format_of(format, out)
    title, labelled = _read(file, truth, rows)
    points = operating_points(labelled.confidence, labelled.correct, risks=risks, guarantee=guarantee)
    if figure is not None:
        save(draw_operating_points(labelled.confidence, labelled.correct, points, title=title), figure)
    if form == "json":
        write_text(as_json({"source": title, "points": _table(points)}).decode(), out)
    elif form == "csv":
        write_text(frame_csv(pd.DataFrame(_table(points))), out)
    else:
        width = (terminal_width() or 100) if out is None else None
        text = render_strings(_strings(points), 2, form, title, _notes(labelled, points), width=width)
        write_text(text, out)
    return 0


def _read(file: Path, truth: TruthOptions, rows: RowOptions) -> tuple[str, LabelledPredictions]:
    """Return a title and the confidences of a file or of a run."""
    if not (file / "config.json").is_file():
        if rows.dataset is not None or rows.seed is not None:
            name = "dataset" if rows.dataset is not None else "seed"
            raise OtptError(f"--{name} was given, but {str(file)!r} is no run; leave it out.")
        labelled = read_labelled(file, truth.labels, truth=truth.truth, method=rows.method)
        return ", ".join(filter(None, (file.name, labelled.method))), labelled
    if truth.given():
        raise OtptError(f"--{next(iter(truth.given()))} was given, but a run has its labels; leave it out.")
    seeds = None if rows.seed is None else [rows.seed]
    results = open_results([file], seeds=seeds)
    for kind, wanted, names in (
        ("data set", rows.dataset, results.datasets),
        ("method", rows.method, results.methods),
    ):
        if wanted is None and len(names) > 1:
            option = {"data set": "--datasets", "method": "--methods"}[kind]
            raise OtptError(f"The run has several {kind}s ({', '.join(names)}); name one with {option}.")
    dataset, method = rows.dataset or results.datasets[0], rows.method or results.methods[0]
    stored = results.rows(results.first_key(dataset, method))
    labelled = LabelledPredictions(method, stored.confidences, stored.correct, 0)
    return f"{dataset}, {method}", labelled


def _strings(points: Sequence[OperatingPoint]) -> pd.DataFrame:
    """Format operating points with two lines per risk."""
    lines = []
    for point in points:
        lines.append([f"{100 * point.risk:g}", "guaranteed", *_cells(point.guaranteed)])
        lines.append(["", "empirical", *_cells(point.empirical)])
    return pd.DataFrame(lines, columns=pd.Index(["risk %", "threshold", *_HEADS]))


def _cells(point: Point | None) -> list[str]:
    """Format threshold, share answered, errors and their interval."""
    if point is None:
        return [NOTHING] * len(_HEADS)
    low, high = (f"{100 * bound:.1f}" for bound in point.interval())
    return [point.shown, f"{100 * point.share:.1f}", f"{100 * point.error:.1f}", f"{low} … {high}"]


def _table(points: Sequence[OperatingPoint]) -> list[dict[str, object]]:
    """Return operating points as rows of plain data, one per risk and kind."""
    rows: list[dict[str, object]] = []
    for point in points:
        for kind, chosen in (("guaranteed", point.guaranteed), ("empirical", point.empirical)):
            row: dict[str, object] = {"risk": point.risk, "kind": kind, "guarantee": point.guarantee}
            if kind == "empirical":
                row["guarantee"] = None
            names = ("threshold", "share", "error", "error_low", "error_high", "answered", "wrong", "labels")
            values: dict[str, object] = dict.fromkeys(names)
            if chosen is not None:
                low, high = chosen.interval()
                numbers = (float(chosen.shown), chosen.share, chosen.error, low, high)
                values = dict(zip(names, (*numbers, chosen.answered, chosen.wrong, chosen.labels), strict=True))
            rows.append(row | values)
    return rows


def _notes(labelled: LabelledPredictions, points: Sequence[OperatingPoint]) -> list[str]:
    """Return sentences on what the thresholds promise and how to use them."""
    labels, wrong = len(labelled.correct), int((~labelled.correct).sum())
    guarantee = points[0].guarantee
    notes = [
        f"{labels} labelled images, {wrong} of them wrong ({100 * wrong / labels:.1f} %).",
        f"guaranteed: with probability {100 * guarantee:g} % over the draw of the labelled images, at most this share "
        "of the answered new images is wrong. empirical: the lowest threshold that meets the risk on these labels; "
        "chosen on them, so expect more errors on new images.",
    ]
    if any(point.guaranteed is None for point in points):
        least = least_risk(labelled.confidence, labelled.correct, guarantee=guarantee)
        reachable = "none" if least is None else f"{100 * least:g} %"
        notes.append(f"{NOTHING}: no threshold; the smallest risk that {labels} labels can guarantee is {reachable}.")
    chosen = next((one for point in points for one in (point.guaranteed, point.empirical) if one is not None), None)
    if chosen is not None:
        notes.append(f"To use one, keep the rows with confidence > it: table[table.confidence > {chosen.shown}].")
    if labelled.left_out:
        notes.append(f"{labelled.left_out} rows have no prediction or no true label; they are left out.")
    return notes
