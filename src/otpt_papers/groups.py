"""Images split into two groups by the mean cosine similarity of TPT's text features: the O-TPT paper's Table 1.

The paper says that the threshold is the median; the sizes of its groups fit the similarity of the initial prompt
better. So there are two splits.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import ece
from otpt.report import ResultKey, Results
from otpt.report.rows import init_cosine, mean_cosines

SPLITS = ("median", "init")
"""Thresholds of the similarity: its median, and that of the initial prompt."""
SPLIT_BY = "tpt"
"""The method whose similarity splits the images."""


def splits_of(results: Results, keys: list[ResultKey]) -> tuple[str, ...]:
    """Return the splits that the runs allow; without a method that adapts nothing, only that at the median."""
    has_initial = all(init_cosine(results, key) is not None for key in keys)
    return SPLITS if has_initial else SPLITS[:1]


def split_groups(results: Results, dataset: str, split: str = "median") -> pd.DataFrame:
    """Compute accuracy and ECE of the images above and below a threshold of TPT's mean cosine similarity.

    Args:
        results: runs of one model.
        dataset: name of the data set.
        split: one of :data:`SPLITS`.

    Returns:
        Rows as in the frame of the results; the data sets are NAME:group 1 (above), NAME:group 2 and NAME (all), with
        their numbers of ``images`` and the ``threshold``.
    """
    if SPLIT_BY not in results.whole.methods:
        raise OtptError(f"The groups are made by the similarity of {SPLIT_BY!r}, which the runs lack; add it to a run.")
    groups = []
    for key in results.keys_of(dataset):
        rows = results.rows(key)
        cosines = mean_cosines(results.whole, key._replace(method=SPLIT_BY))
        if len(rows) != len(cosines):
            raise OtptError(f"{key.method!r} and {SPLIT_BY!r} did not see the same images of {dataset!r}.")
        threshold = float(np.median(cosines)) if split == "median" else init_cosine(results, key)
        if threshold is None:
            raise OtptError(
                f"The initial similarity on {dataset!r} is not in the runs; add 'zero-shot' to the methods."
            )
        above = cosines > threshold
        for name, members in ((":group 1", above), (":group 2", ~above), ("", np.ones_like(above))):
            correct = rows.correct[members]
            accuracy = error = np.nan
            if members.any():
                accuracy = float(correct.mean())
                error = ece(rows.confidences[members], correct, n_bins=results.n_bins, side=results.side)
            values = {"accuracy": accuracy, "ece": error, "images": int(members.sum()), "threshold": threshold}
            groups.append({**results.require_score(key), **values, "dataset": dataset + name})
    return pd.DataFrame(groups)
