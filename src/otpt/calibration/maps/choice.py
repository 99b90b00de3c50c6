"""Which map: the one with the lowest NLL on labels that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otpt.calibration.maps.inputs import Floats, Integers
from otpt.calibration.maps.registry import CalibrationMap, candidates, fit_map
from otpt.metrics.scores import NLL_FLOOR

FOLDS = 5


@dataclass(frozen=True)
class Choice:
    """The chosen map.

    Attributes:
        map: fitted on all labels.
        nll: of each candidate, cross-validated.
        held_out: (N, C), the probabilities of each image by the chosen kind of map fitted without the image's fold.
    """

    map: CalibrationMap
    nll: dict[str, float]
    held_out: Floats


def choose_map(probabilities: Floats, labels: Integers, *, maps: Sequence[str] | None = None) -> Choice:
    """The map of probabilities (N, C) and labels (N,) with the lowest cross-validated NLL; of equal ones the simplest.

    ``maps`` are the candidates beside the identity; None takes all that keep the label. See :data:`MAPS`.
    """
    names = candidates(maps, len(labels), probabilities.shape[1])
    fold = stratified_folds(labels)
    held_out = {name: np.empty(probabilities.shape) for name in names}
    for number in range(FOLDS):
        inside = fold != number
        for name in names:
            fitted = fit_map(name, probabilities[inside], labels[inside])
            held_out[name][~inside] = fitted(probabilities[~inside])
    nll = {name: _nll(own, labels) for name, own in held_out.items()}
    best = min(names, key=nll.__getitem__)
    return Choice(fit_map(best, probabilities, labels), nll, held_out[best])


def stratified_folds(labels: Integers) -> Integers:
    """A fold 0 … 4 for each of (N,) labels, each class spread evenly; the same for the same labels."""
    order = np.random.default_rng(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_class] = np.arange(len(labels)) % FOLDS
    return fold


def _nll(probabilities: Floats, labels: Integers) -> float:
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    return float(-np.log(np.clip(own, NLL_FLOOR, 1.0)).mean())
