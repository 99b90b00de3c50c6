"""Fit a calibration to labelled probabilities: the map, reliability before and after, and the scores for sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otpt.calibration.file import Calibration, Diagram, Raps
from otpt.calibration.maps import LEAST_LABELS, Floats, Integers, as_stored, choose_map
from otpt.calibration.sets import FREE_RANKS, PENALTY, SETS, conformal_scores
from otpt.errors import OtptError
from otpt.metrics import bootstrap, reliability_bins
from otpt.metrics.inputs import check_probabilities

SHOWN = ("accuracy", "nll", "ece", "debiased_ece")


def fit_calibration(
    probabilities: npt.NDArray[Any],
    labels: npt.NDArray[Any] | Sequence[int],
    facts: Mapping[str, Any],
    *,
    origin: Mapping[str, Any] | None = None,
    maps: Sequence[str] | None = None,
    penalty: float = PENALTY,
    free_ranks: int = FREE_RANKS,
    n_bins: int = 20,
) -> Calibration:
    """Fit a calibration to a method's probabilities (N, C) and labels (N,).

    The map is fitted on all labels. Sets and risk are counted on the probabilities **before** the map, so that all
    labels serve them too and their guarantees are exact: a map that has seen the labels would spoil them.

    Args:
        facts: what the calibration is for; ``classes`` are needed.
        origin: where the labels come from, for people.
        maps: candidates; see :func:`otpt.calibration.maps.choose_map`.
        penalty, free_ranks: λ and k of RAPS.
        n_bins: of the calibration errors that are shown.
    """
    checked, y = check_probabilities(probabilities, labels)
    _check_labels(y, list(facts["classes"]), checked.shape[1])
    _check_raps(penalty, free_ranks)
    p = as_stored(checked)
    choice = choose_map(p, y, maps=maps)
    scores = {kind: _by_class(conformal_scores(kind, p, penalty=penalty, free_ranks=free_ranks), y) for kind in SETS}
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    order = np.lexsort((~correct, -confidence))
    return Calibration(
        facts=dict(facts),
        origin=dict(origin or {}),
        labels=len(y),
        map=choice.map,
        cross_validation=choice.nll,
        reliability={"before": _metrics(p, y, n_bins), "after": _metrics(choice.held_out, y, n_bins)},
        bins={"before": _diagram(p, y, n_bins), "after": _diagram(choice.held_out, y, n_bins)},
        scores=scores,
        raps=Raps(penalty=penalty, free_ranks=free_ranks),
        confidences=confidence[order].tolist(),
        correct="".join("1" if each else "0" for each in correct[order]),
    )


def _by_class(scores: Floats, labels: Integers) -> dict[int, list[float]]:
    own = scores[np.arange(len(labels)), labels]
    return {int(label): np.sort(own[labels == label]).tolist() for label in np.unique(labels)}


def _metrics(probabilities: Floats, labels: Integers, n_bins: int) -> dict[str, list[float]]:
    intervals = {name: bootstrap(name, probabilities, labels, n_bins=n_bins) for name in SHOWN}
    return {name: [own.estimate, own.low, own.high] for name, own in intervals.items()}


def _diagram(probabilities: Floats, labels: Integers, n_bins: int) -> Diagram:
    found = reliability_bins(probabilities, labels, n_bins=n_bins)
    confidence, accuracy = (
        [None if np.isnan(v) else float(v) for v in own] for own in (found.confidence, found.accuracy)
    )
    return Diagram(counts=found.counts.tolist(), confidence=confidence, accuracy=accuracy)


def _check_labels(labels: Integers, classes: list[str], columns: int) -> None:
    if len(classes) != columns:
        raise OtptError(f"expected probabilities of {len(classes)} classes, but got {columns}.")
    if len(labels) < LEAST_LABELS:
        raise OtptError(
            f"{len(labels)} labelled images were given, too few for a calibration; expected at least {LEAST_LABELS}, "
            "better hundreds."
        )
    seen = np.unique(labels)
    if len(seen) == 1:
        raise OtptError(
            f"All {len(labels)} labels are of the class {classes[seen[0]]!r}; expected images of at least two classes, "
            "like those to be predicted."
        )


def _check_raps(penalty: float, free_ranks: int) -> None:
    if not 0.0 <= penalty < np.inf or free_ranks < 0:
        raise OtptError(
            f"RAPS was given a penalty of {penalty!r} after {free_ranks!r} ranks; expected 0 or more of both."
        )
