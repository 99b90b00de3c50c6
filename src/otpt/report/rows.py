"""Results of single images: accuracy of each class, confusions, similarity of text features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from otpt.errors import OtptError
from otpt.report.results import ResultKey, Results
from otpt.runs import Rows


def per_class(results: Results) -> pd.DataFrame:
    """Return images, accuracy (recall), predictions and mean confidence of each class."""
    tables = []
    for key, rows, classes in _columns(results):
        images = pd.DataFrame({"label": rows.labels, "accuracy": rows.correct, "confidence": rows.confidences})
        means = images.groupby("label").mean().reindex(range(len(classes)))
        table = pd.DataFrame({"class": classes}).assign(
            images=np.bincount(rows.labels, minlength=len(classes)),
            accuracy=means["accuracy"],
            predicted=np.bincount(rows.predictions, minlength=len(classes)),
            confidence=means["confidence"],
        )
        tables.append(table.assign(**key._asdict()))
    return _stacked(tables)


def confusions(results: Results, count: int = 10) -> pd.DataFrame:
    """Return the ``count`` most frequent pairs (label, wrong prediction) of each data set, seed, prompt and method."""
    tables = []
    for key, rows, classes in _columns(results):
        wrong = ~rows.correct
        pairs = pd.DataFrame({"label": rows.labels[wrong], "prediction": rows.predictions[wrong]})
        table = pairs.value_counts(sort=False).reset_index(name="images")
        table = table.sort_values("images", ascending=False, kind="stable").head(count)
        table["fraction"] = table["images"] / np.bincount(rows.labels, minlength=len(classes))[table["label"]]
        names = {name: [classes[at] for at in table[name]] for name in ("label", "prediction")}
        tables.append(table.assign(**names, **key._asdict()))
    return _stacked(tables)


def _columns(results: Results) -> Iterator[tuple[ResultKey, Rows, list[str]]]:
    for key in results.narrow(results.frame[results.frame["images"] > 0]).keys_of():
        yield key, results.rows(key), results.configs_of(key.dataset)[0].classes


def _stacked(tables: list[pd.DataFrame]) -> pd.DataFrame:
    keys = list(ResultKey._fields)
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=keys)
    return table[[*keys, *(name for name in table if name not in keys)]]


def init_cosine(results: Results, key: ResultKey) -> float | None:
    """Return the mean cosine similarity under the initial prompt, or None without a zero-shot method."""
    scores = results.whole.select(dataset=key.dataset, seed=key.seed, prompt=key.prompt)
    for method, cosine in zip(scores["method"], scores["mean_cosine"], strict=True):
        definition = results.definition_of(method)
        if definition["adapt"] == "context" and not definition["objectives"] and np.isfinite(cosine):
            return float(cosine)
    return None


def mean_cosines(results: Results, key: ResultKey) -> npt.NDArray[np.float64]:
    """Return the mean cosine similarity (N,) of the text features of each prediction."""
    cosines = results.rows(key).mean_cosines
    if np.isnan(cosines).any():
        raise OtptError(
            f"The rows of {key.method!r} on {key.dataset!r} have no mean cosine similarity, since it has no text "
            "features; choose others with --methods."
        )
    return cosines
