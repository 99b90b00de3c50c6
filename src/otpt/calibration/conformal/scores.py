"""The scores of all kinds of sets, from probabilities alone."""

from __future__ import annotations

import hashlib

import numpy as np

from otpt.calibration.conformal.aps import aps_scores
from otpt.calibration.conformal.lac import lac_scores
from otpt.calibration.conformal.raps import FREE_RANKS, PENALTY, raps_scores
from otpt.calibration.maps.inputs import Floats
from otpt.errors import unknown

SETS = ("lac", "aps", "raps")


def all_scores(kind: str, probabilities: Floats, *, penalty: float = PENALTY, free_ranks: int = FREE_RANKS) -> Floats:
    """s(x, c) of every class: (N, C) → (N, C)."""
    if kind == "lac":
        return lac_scores(probabilities)
    if kind == "aps":
        return aps_scores(probabilities, draws(probabilities))
    if kind == "raps":
        return raps_scores(probabilities, draws(probabilities), penalty=penalty, free_ranks=free_ranks)
    raise unknown("kind of prediction sets", kind, SETS)


def draws(probabilities: Floats) -> Floats:
    """u in [0, 1) of each image, hashed from its predicted class and its two largest probabilities: (N, C) → (N,).

    So an image has the same set whenever and wherever it is predicted. The probabilities are rounded to three digits,
    so that the last ones, in which processors differ, do not matter. Any function of the image keeps the coverage.
    """
    first = probabilities.argmax(axis=1)
    largest = np.sort(probabilities, axis=1)[:, -2:]
    keys = (f"otpt aps 1/{c}/{a:.3f}/{b:.3f}" for c, (b, a) in zip(first.tolist(), largest.tolist(), strict=True))
    found = [int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2.0**48 for key in keys]
    return np.array(found)
