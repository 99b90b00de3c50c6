"""Metrics of several labels per image (``--multi-label``, and runs made with it), and ``otpt export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import command_line, plural, print_json, print_table, terminal_width
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

FILES = (".csv", ".json", ".html")
_SHOWN = 20
"""Number of labels that are printed."""


def label_runs(folders: Sequence[Path]) -> list[otpt.runs.Run]:
    """Return the runs in these folders if all have several labels per image, else none."""
    runs = [otpt.runs.Run(folder) for folder in folders]
    return runs if all(run.multi_label for run in runs) else []


def show_labels(
    runs: Sequence[otpt.runs.Run],
    *,
    out: Path | None = None,
    as_json: bool = False,
    n_bins: int | None = None,
    title: str = "Several labels per image",
) -> int:
    """Print the metrics of runs with several labels per image, or write them to a file; returns the exit code."""
    from otpt.cli.results import records, say_in_progress, write_csv

    found = otpt.runs.label_results(runs, n_bins=n_bins)
    images = int(otpt.runs.results_frame(runs).groupby("dataset")["images"].max().sum())
    values = {"runs": [str(run.folder) for run in runs], "images": images, "metrics": records(found)}
    over_all, by_label = label_tables(found)
    kind = "" if out is None else out.suffix.lower()
    if out is None and as_json:
        print_json(values)
    elif out is None:
        print_table(list(over_all.columns), over_all.to_numpy(), names=len(over_all.columns) - 2, width=80)
        print()
        print_table(list(by_label.columns), by_label.head(_SHOWN).to_numpy(), names=len(by_label.columns) - 4, width=80)
        if len(by_label) > _SHOWN:
            print(f"\nThe {_SHOWN} labels of {len(by_label)} with the lowest AP; --out FILE.csv writes all.")
    elif kind == ".csv":
        write_csv(out, found)
    elif kind == ".json":
        write_atomically(out, json.dumps(values, indent=2, ensure_ascii=False).encode())
    else:
        from otpt.report.page import make_label_page, write_page

        lede = f"{plural(images, 'image')} · {plural(len(by_label), 'label')} · model {found.model[0]}"
        write_page(out, make_label_page(title, lede, over_all, by_label, command=command_line()))
    if out is not None:
        print(f"The metrics of {plural(images, 'image')} and {plural(len(by_label), 'label')} are in {str(out)!r}.")
    return say_in_progress(runs)


def label_table_text(runs: Sequence[otpt.runs.Run], form: str, *, n_bins: int | None = None) -> str:
    """Return the metrics over all labels as a table in a format of ``otpt table``."""
    from otpt.report.formats import text_table

    table, _ = label_tables(otpt.runs.label_results(runs, n_bins=n_bins))
    if form == "terminal":
        return text_table(table, len(table.columns) - 2, terminal_width()) + "\n"
    if form == "markdown":
        return table.to_markdown(index=False, disable_numparse=True) + "\n"
    if form == "latex":
        return str(table.to_latex(index=False, escape=True))
    return table.to_csv(index=False) if form == "csv" else table.to_json(orient="records", force_ascii=False) + "\n"


def label_tables(found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the metrics over all labels, and of each label with the lowest average precision first, as strings."""
    from otpt.metrics.multi_label import METRICS, OF_ONE_LABEL

    keys = [key for key in ("model", "dataset", "seed", "prompt", "method") if found[key].nunique() > 1]

    def interval(rows: pd.DataFrame, digits: int) -> pd.Series:
        return rows.low.map(f"{{:.{digits}f}}".format) + " … " + rows.high.map(f"{{:.{digits}f}}".format)

    whole, each = found[found.label == ""], found[found.label != ""]
    over_all = whole[keys].astype(str).assign(metric=[METRICS[name][0] for name in whole.metric])
    over_all = over_all.assign(value=whole.value.map("{:.2f}".format), **{"95 %": interval(whole, 2)})
    order = each[each.metric == "map"].sort_values("value", kind="stable").set_index([*keys, "label"])
    by_label = order[["images"]].astype(str)
    for name, digits in (("map", 0), ("micro_f1", 0), ("label_ece", 1)):
        rows = each[each.metric == name].set_index([*keys, "label"]).loc[order.index]
        by_label[OF_ONE_LABEL[name]] = rows.value.map(f"{{:.{digits}f}}".format) + " (" + interval(rows, digits) + ")"
    return over_all, by_label.reset_index().astype(str).replace("nan (nan … nan)", "–")


def export(
    *,
    out: Annotated[Path, o.out("the ONNX file to write")],
    classes: o.Classes = None,
    methods: Annotated[str, o.methods("zero-shot, confident-half, or another that tunes nothing")] = "zero-shot",
    method: o.MethodOptions = o.MethodOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
) -> int:
    """Write a classifier with fixed classes as one ONNX file: image tower, text features, aggregation and calibration.

    otpt export --classes cat dog --backbone ViT-B-32/openai --out pets.onnx
    """
    listed = o.read_classes(classes)
    if listed is None:
        raise OtptError("No class names were given; name at least two after --classes, or write --classes @FILE.")
    from otpt.export import check_exportable

    chosen = method.methods([methods])
    check_exportable(chosen[0])
    settings = Settings(methods=chosen, classes=listed.names, **method.settings(chosen), **calibration.settings())
    otpt.Classifier(model.load(), settings).export(out)
    print(f"The model is in {str(out)!r}: views (B, V, 3, S, S) to probabilities (B, {len(listed.names)}).")
    return 0
