"""Metrics of several labels per image: ``--multi-label``, and runs made with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from otpt.cli.summaries import frame_rows, say_in_progress, write_csv
from otpt.cli.terminal import command_line, plural, print_json, print_table, terminal_width
from otpt.escapes import csv_cell, latex, markdown, plain
from otpt.files import write_atomically
from otpt.metrics.multi_label import METRICS, OF_ONE_LABEL
from otpt.report.formats import text_table
from otpt.report.page import make_label_page, write_page
from otpt.runs import Run, label_results, results_frame

FILES = (".csv", ".json", ".html")
_SHOWN = 20
"""Number of labels that are printed."""
_KEYS = ("model", "dataset", "seed", "prompt", "method")


def label_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders if all have several labels per image, else none."""
    runs = [Run(folder) for folder in folders]
    return runs if all(run.multi_label for run in runs) else []


def show_labels(
    runs: Sequence[Run],
    *,
    out: Path | None = None,
    as_json: bool = False,
    n_bins: int | None = None,
    title: str = "Several labels per image",
) -> int:
    """Print the metrics of runs with several labels per image, or write them to a file; returns the exit code."""
    results = label_results(runs, n_bins=n_bins)
    images = int(results_frame(runs).groupby("dataset")["images"].max().sum())
    values = {"runs": [str(run.folder) for run in runs], "images": images, "metrics": frame_rows(results)}
    over_all, by_label = label_tables(results)
    if out is not None:
        if out.suffix.lower() == ".csv":
            write_csv(out, results)
        elif out.suffix.lower() == ".json":
            write_atomically(out, json.dumps(values, indent=2, ensure_ascii=False).encode())
        else:
            lede = f"{plural(images, 'image')} · {plural(len(by_label), 'label')} · model {results.model[0]}"
            write_page(out, make_label_page(title, lede, over_all, by_label, command=command_line()))
        print(f"The metrics of {plural(images, 'image')} and {plural(len(by_label), 'label')} are in {str(out)!r}.")
    elif as_json:
        print_json(values)
    else:
        print_table(list(over_all.columns), over_all.to_numpy(), names=len(over_all.columns) - 2, width=80)
        print()
        print_table(list(by_label.columns), by_label.head(_SHOWN).to_numpy(), names=len(by_label.columns) - 4, width=80)
        if len(by_label) > _SHOWN:
            print(f"\nThe {_SHOWN} labels of {len(by_label)} with the lowest AP; --out FILE.csv writes all.")
    return say_in_progress(runs)


def label_table_text(runs: Sequence[Run], form: str, *, n_bins: int | None = None) -> str:
    """Return the metrics over all labels as a table in a format of ``otpt table``."""
    table, _ = label_tables(label_results(runs, n_bins=n_bins))
    if form == "text":
        return text_table(table.map(plain), len(table.columns) - 2, terminal_width()) + "\n"
    if form == "markdown":
        return table.map(markdown).to_markdown(index=False, disable_numparse=True) + "\n"
    if form == "latex":
        return str(table.map(latex).rename(columns=latex).to_latex(index=False, escape=False))
    if form == "csv":
        names = table.columns[:-2]  # the others are numbers
        return str(table.assign(**table[names].map(csv_cell)).to_csv(index=False))
    return table.to_json(orient="records", force_ascii=False) + "\n"


def label_tables(results: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the metrics over all labels, and of each label with the lowest average precision first, as strings."""
    keys = [key for key in _KEYS if results[key].nunique() > 1]
    whole = results[results.label == ""]
    per_label = results[results.label != ""]
    over_all = whole[keys].astype(str).assign(metric=[METRICS[name][0] for name in whole.metric])
    over_all = over_all.assign(value=whole.value.map("{:.2f}".format), **{"95 %": _intervals(whole, 2)})
    order = per_label[per_label.metric == "map"].sort_values("value", kind="stable").set_index([*keys, "label"])
    by_label = order[["images"]].astype(str)
    for name, digits in (("map", 0), ("micro_f1", 0), ("label_ece", 1)):
        rows = per_label[per_label.metric == name].set_index([*keys, "label"]).loc[order.index]
        values = rows.value.map(f"{{:.{digits}f}}".format)
        by_label[OF_ONE_LABEL[name]] = values + " (" + _intervals(rows, digits) + ")"
    return over_all, by_label.reset_index().astype(str).replace("nan (nan … nan)", "–")


def _intervals(rows: pd.DataFrame, digits: int) -> pd.Series:
    number = f"{{:.{digits}f}}".format
    return rows.low.map(number) + " … " + rows.high.map(number)
