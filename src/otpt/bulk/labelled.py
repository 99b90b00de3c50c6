"""Predictions in a file of ``otpt predict`` with true labels, from a column of the file or from a table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from otpt.data.own import read_table
from otpt.data.sources import image_column
from otpt.errors import OtptError, cannot_read, unknown
from otpt.escapes import csv_name

TRUTHS = ("true_label", "truth", "true", "target", "ground_truth", "correct")
"""Columns in which true labels are looked for; "correct" has yes or no."""
_YES = {"1", "1.0", "true", "yes"}
_NO = {"0", "0.0", "false", "no"}


@dataclass(frozen=True)
class LabelledPredictions:
    """Confidences of labelled images.

    Attributes:
        method: name of the method, "" if the file has none.
        confidence: confidences (N,).
        correct: whether each prediction is correct (N,).
        left_out: number of rows without a confidence or label.
    """

    method: str
    confidence: npt.NDArray[np.float64]
    correct: npt.NDArray[np.bool_]
    left_out: int


def read_labelled(
    file: Path, labels: Path | None = None, *, truth: str | None = None, method: str | None = None
) -> LabelledPredictions:
    """Read a file of predictions with true labels.

    Args:
        file: .csv, .jsonl or .parquet file of ``otpt predict`` with the columns label and confidence.
        labels: table with the columns path and label, joined by the names of the images; None for a column of the file.
        truth: column of the true labels; by default one of :data:`TRUTHS`.
        method: name of the method in a file of several.
    """
    table = _read(file)
    for name in ("label", "confidence"):
        if name not in table:
            raise OtptError(
                f"The file {str(file)!r} has the columns {', '.join(table.columns) or 'none'}; expected {name!r} and "
                "the others that 'otpt predict … --out' writes."
            )
    table, name = _one_method(table, method)
    if labels is not None:
        if truth is not None:
            raise OtptError("Both a table of labels and a column of the true labels were given; expected one of them.")
        truths = _joined(table, labels)
    else:
        truths = table[_truth_column(table, truth, file)]
    confidence = pd.to_numeric(table["confidence"], errors="coerce")
    is_read = confidence.notna() & (truths != "")
    predicted = table["label"][is_read].map(_plain)
    correct = _correct(predicted, truths[is_read], is_flag=labels is None and truths.name == "correct")
    return LabelledPredictions(
        name, confidence[is_read].to_numpy(np.float64), correct.to_numpy(np.bool_), int((~is_read).sum())
    )


def _read(file: Path) -> pd.DataFrame:
    """Read a file of predictions as strings."""
    if file.suffix.lower() != ".jsonl":
        table = read_table(file)
        return table if file.suffix.lower() == ".parquet" else table.map(csv_name)
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        table = pd.DataFrame(rows)
    except (OSError, ValueError) as error:
        raise cannot_read("file of predictions", file, error) from None
    return table.astype(object).where(table.notna(), "").astype(str)


def _one_method(table: pd.DataFrame, method: str | None) -> tuple[pd.DataFrame, str]:
    """Return the rows of a method, the only one by default, and its name."""
    if "method" not in table:
        if method is not None:
            raise OtptError(f"The method {method!r} was given, but the file has no column 'method'; leave it out.")
        return table, ""
    names = [name for name in dict.fromkeys(table["method"]) if name]
    if method is None and len(names) > 1:
        raise OtptError(f"The file has predictions of several methods ({', '.join(names)}); name one with --methods.")
    if method is not None and method not in names:
        raise unknown("method of the file", method, names)
    chosen = method or "".join(names)
    return table[table["method"] == chosen], chosen


def _truth_column(table: pd.DataFrame, truth: str | None, file: Path) -> str:
    """Return the column of the true labels."""
    if truth is not None:
        if truth.lower() not in table:
            raise unknown("column", truth, list(table.columns))
        return truth.lower()
    column = next((name for name in TRUTHS if name in table), None)
    if column is None:
        raise OtptError(
            f"The file {str(file)!r} has no column of true labels ({', '.join(TRUTHS)}); add one, name it with "
            "--truth, or give a table of path and label with --labels."
        )
    return column


def _joined(table: pd.DataFrame, labels: Path) -> pd.Series:
    """Return the true label of each row, "" for images that the table of labels does not have."""
    truths = read_table(labels)
    if "label" not in truths or "image" not in table:
        raise OtptError(f"The table {str(labels)!r} has no column 'label', or the predictions have no column 'image'.")
    paths = truths[image_column(truths.columns, None, str(labels))]
    by_name = dict(zip(paths, truths["label"], strict=True))
    files = Counter(map(_file_name, paths))
    by_file = {_file_name(path): label for path, label in by_name.items() if files[_file_name(path)] == 1}
    found = [by_name.get(image, by_file.get(_file_name(image), "")) for image in table["image"]]
    if not any(found):
        raise OtptError(
            f"The table {str(labels)!r} has none of the {len(table)} images of the predictions, such as "
            f"{table['image'].iloc[0]!r}; expected the same paths or file names."
        )
    return pd.Series(found, table.index)


def _correct(predicted: pd.Series, truths: pd.Series, *, is_flag: bool) -> pd.Series:
    """Return which predictions are correct."""
    if is_flag:
        flags = truths.str.casefold()
        if not flags.isin(_YES | _NO).all():
            strange = flags[~flags.isin(_YES | _NO)].iloc[0]
            raise OtptError(f"The column 'correct' holds {strange!r}; expected yes or no, true or false, 1 or 0.")
        return flags.isin(_YES)
    correct = predicted == truths.map(_plain)
    if len(correct) and not correct.any():
        raise OtptError(
            f"No prediction equals its true label, such as {predicted.iloc[0]!r} and {truths.iloc[0]!r}; expected the "
            "same class names in both."
        )
    return correct


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold().strip()


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
