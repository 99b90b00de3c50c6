"""Results of single classes and images: accuracy of each class, confusions, certificates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from otpt.report.results import ResultKey, Results
from otpt.runs import Rows, Run


def per_class(results: Results) -> pd.DataFrame:
    """A row per data set, seed, prompt, method and class: images, accuracy (recall), predicted, mean confidence."""
    found = []
    for keys, rows, classes in _columns(results):
        own = pd.DataFrame({"label": rows.labels, "accuracy": rows.correct, "confidence": rows.confidences})
        means = own.groupby("label").mean().reindex(range(len(classes)))
        table = pd.DataFrame({"class": classes}).assign(
            images=np.bincount(rows.labels, minlength=len(classes)),
            accuracy=means["accuracy"],
            predicted=np.bincount(rows.predictions, minlength=len(classes)),
            confidence=means["confidence"],
        )
        found.append(table.assign(**keys._asdict()))
    return _stacked(found)


def confusions(results: Results, count: int = 10) -> pd.DataFrame:
    """The ``count`` most frequent pairs (label, wrong prediction) of each data set, seed, prompt and method."""
    found = []
    for keys, rows, classes in _columns(results):
        wrong = ~rows.correct
        pairs = pd.DataFrame({"label": rows.labels[wrong], "prediction": rows.predictions[wrong]})
        table = pairs.value_counts(sort=False).reset_index(name="images")
        table = table.sort_values("images", ascending=False, kind="stable").head(count)
        table["fraction"] = table["images"] / np.bincount(rows.labels, minlength=len(classes))[table["label"]]
        names = {name: [classes[at] for at in table[name]] for name in ("label", "prediction")}
        found.append(table.assign(**names, **keys._asdict()))
    return _stacked(found)


def certified_accuracy(run: Run, method: str, radii: Iterable[float]) -> tuple[dict[float, float | None], float | None]:
    """For each radius the fraction of images that are correct and certified for perturbations of at least this norm;
    and the fraction on which the method abstained, which count as wrong. None without a readable image.
    """
    rows = run.to_pandas()
    rows = rows[(rows["method"] == method) & rows["error"].isna()]
    if rows.empty:
        return dict.fromkeys(radii), None
    abstained = np.array(["abstained" in flags for flags in rows["flags"]])
    reached = np.where(rows["correct"].astype(bool) & ~abstained, rows["radius"], -np.inf)
    return {radius: float((reached >= radius).mean()) for radius in radii}, float(abstained.mean())


def _columns(results: Results) -> Iterator[tuple[ResultKey, Rows, list[str]]]:
    for each in results.frame[results.frame["images"] > 0].itertuples():
        key = ResultKey(each.dataset, int(each.seed), each.prompt, each.method)
        yield key, results.rows(key), list(results.config_of(each.dataset)["classes"])


def _stacked(tables: list[pd.DataFrame]) -> pd.DataFrame:
    keys = list(ResultKey._fields)
    found = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=keys)
    return found[[*keys, *(name for name in found if name not in keys)]]
