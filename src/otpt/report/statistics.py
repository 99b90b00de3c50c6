"""Bootstrap over stored rows, for intervals of a metric and of the difference of two methods.

A metric over several data sets is the mean of theirs; the images of each are resampled on their own. Over several seeds
it is the mean over seeds, and the same images are drawn for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.metrics.bootstrap import resample_weights
from otpt.report.defaults import RESAMPLES
from otpt.runs import Rows

Floats = npt.NDArray[np.float64]


def resampled(
    metric: str, rows: Sequence[Sequence[Rows]], bins: int, side: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, Floats]:
    """The metric and its (R,) resamples; ``rows`` of each data set and seed: ``rows[data set][seed]``."""
    return all_resampled([metric], rows, bins, side, resamples=resamples, seed=seed)[metric]


def all_resampled(
    metrics: Sequence[str],
    rows: Sequence[Sequence[Rows]],
    bins: int,
    side: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, tuple[float, Floats]]:
    """Several metrics, each as :func:`resampled` gives it; images are drawn once for all. nan: not defined there."""
    if resamples < 1:
        raise OtptError(f"The number of resamples is {resamples}; expected 1 or more.")
    estimates, values = dict.fromkeys(metrics, 0.0), {metric: np.zeros(resamples) for metric in metrics}
    for position, of_seeds in enumerate(rows):
        n = len(of_seeds[0])
        if any(len(each) != n for each in of_seeds):
            raise OtptError("The seeds did not see the same images, so these cannot be resampled; finish the run.")
        # one data set is drawn as otpt.metrics.bootstrap draws it; each further one differently
        draws = resample_weights(n, resamples, seed if position == 0 else (seed, position))
        start = 0
        for weights in draws:
            part = slice(start, start + len(weights))
            for metric in metrics:
                values[metric][part] += _mean_over_seeds(metric, of_seeds, weights, bins, side)
            start = part.stop
        for metric in metrics:
            estimates[metric] += float(_mean_over_seeds(metric, of_seeds, np.ones((1, n)), bins, side)[0])
    return {metric: (estimates[metric] / len(rows), values[metric] / len(rows)) for metric in metrics}


def _mean_over_seeds(metric: str, of_seeds: Sequence[Rows], weights: Floats, bins: int, side: str) -> Floats:
    own = get_metric(metric)
    return np.mean([own.resampled(rows, weights, n_bins=bins, side=side) for rows in of_seeds], axis=0)


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p-value of "no difference" from resampled differences: 2·min(P(d ≤ 0), P(d ≥ 0)), never quite 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test: the images that only one of two methods gets right, as tosses of a fair coin.

    p = min(1, 2·Σ_{k ≤ min(b, c)} C(b + c, k) / 2^(b + c)).
    """
    n, least = only_first + only_second, min(only_first, only_second)
    k = np.arange(1, least + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k))]) - n * np.log(2.0)  # log C(n, k)/2^n
    return min(1.0, float(2.0 * np.exp(logs).sum()))
