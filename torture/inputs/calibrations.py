"""Calibration files: damaged, or changed and sealed again by somebody who knows how."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from otpt.calibration import Calibrated, fit_calibration, read_calibration
from otpt.calibration.file import _checksum
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import as_json, mutated

_FACTS = {
    "model": {"name": "pocket", "fingerprint": "abc"},
    "method": {"name": "o-tpt", "numbers": {"steps": 1}},
    "classes": ["cat", "dog", "sea"],
    "prompt": {"name": "a photo of a"},
    "views": "64 views",
    "official_precision": False,
}


@cache
def _good() -> list[dict[str, Any]]:
    """A calibration for each kind of map."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(600, 3))
    labels = logits.argmax(axis=1)
    labels[::4] = generator.integers(0, 3, 150)
    probabilities = np.exp(2 * logits) / np.exp(2 * logits).sum(axis=1, keepdims=True)
    found = []
    for kind in ("temperature", "beta", "isotonic", "vector"):
        made = fit_calibration(probabilities, labels, _FACTS, maps=[kind], origin={"dataset": "x", "seed": 0})
        found.append(json.loads(json.dumps(made.as_dict())))
    return found


def _calibration(rng: random.Random, given: Path) -> Input:
    content = rng.choice(_good())
    if rng.random() < 0.85:
        content = mutated(rng, content)
    sealed = rng.random() < 0.75
    if isinstance(content, dict):
        try:
            content["checksum"] = _checksum(content) if sealed else "sha256:" + 64 * "0"
        except ValueError:
            content["checksum"] = "sha256:" + 64 * "0"
    path = given / "calibration.json"
    path.write_bytes(json.dumps(content).encode() if sealed else as_json(rng, content))

    def ask() -> object:
        found = read_calibration(path)
        classes = len(found.class_names)
        row = np.full(classes, 1 / classes)
        for asked in ({}, {"coverage": 0.9}, {"coverage": 0.8, "mondrian": True, "sets": "raps"}, {"risk": 0.1}):
            Calibrated(found, **asked).answer(row)
        found.check(_FACTS)
        return found.diagram, found.map.words, found.digest

    return Input("sealed" if sealed else "not sealed", ask)


KINDS = [Kind("calibration files", _calibration, _good)]
