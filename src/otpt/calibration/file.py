"""The file of a calibration: JSON with a checksum. Reading it runs no code of the file.

It says what it was made for (model, method, classes, prompt, views), and is refused for anything else: the map, the
conformal scores and the confidences in it are those of one method's probabilities.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from otpt.calibration.checking import fault_in
from otpt.calibration.maps.inputs import Booleans, Floats
from otpt.calibration.maps.registry import CalibrationMap
from otpt.calibration.purpose import difference
from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically
from otpt.metrics.binned import ReliabilityBins, bin_edges

FORMAT = 1
_WHAT = "calibration file"


@dataclass(frozen=True)
class Calibration:
    """What labelled images showed of one method with one model and class list.

    Attributes:
        facts: what it is for, as plain data: ``model``, ``method``, ``classes``, ``prompt``, ``views``,
            ``official_precision``.
        origin: which images were used, for people: data set, its fingerprint, seed.
        labels: how many.
        map: of probabilities, chosen by ``cross_validation`` (mean NLL of each candidate).
        reliability: metrics before and after the map, on images that it was not fitted on: {metric: [value, low,
            high]} each; bins: their reliability diagrams, {"counts", "confidence", "accuracy"}, null in empty bins.
        scores: conformal scores of the true class, by kind of set and class index, in rising order.
        raps: λ and k of RAPS.
        confidences: before the map, falling; correct: whether these predictions are right.
    """

    facts: Mapping[str, Any]
    origin: Mapping[str, Any]
    labels: int
    map: CalibrationMap
    cross_validation: Mapping[str, float]
    reliability: Mapping[str, Mapping[str, list[float]]]
    bins: Mapping[str, Mapping[str, list[float | None]]]
    scores: Mapping[str, Mapping[int, list[float]]]
    raps: Mapping[str, float]
    confidences: Floats = field(compare=False)
    correct: Booleans = field(compare=False)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class list, in label order."""
        return tuple(self.facts["classes"])

    @cached_property
    def digest(self) -> str:
        """Of everything in the file."""
        return _checksum(self.as_dict())

    @property
    def diagram(self) -> dict[str, ReliabilityBins]:
        """The reliability diagrams before and after the map."""
        found = {}
        for name, own in self.bins.items():
            counts, confidence, accuracy = (
                np.array(own[key], np.float64) for key in ("counts", "confidence", "accuracy")
            )
            edges = bin_edges(len(counts))
            found[name] = ReliabilityBins(edges, counts.astype(np.int64), accuracy, confidence, self.labels)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without the checksum."""
        return {
            "format": FORMAT,
            "for": dict(self.facts),
            "origin": dict(self.origin),
            "labels": self.labels,
            "map": {"kind": self.map.kind, "parameters": dict(self.map.parameters)},
            "cross_validation": dict(self.cross_validation),
            "reliability": {name: dict(own) for name, own in self.reliability.items()},
            "bins": {name: dict(own) for name, own in self.bins.items()},
            "conformal": {
                "raps": dict(self.raps),
                "scores": {kind: {str(c): list(s) for c, s in own.items()} for kind, own in self.scores.items()},
            },
            "confidences": [float(each) for each in self.confidences],
            "correct": "".join("1" if each else "0" for each in self.correct),
        }

    def write(self, path: str | Path) -> None:
        """As a file, whole or not at all."""
        content = self.as_dict()
        write_atomically(Path(path), as_json({**content, "checksum": _checksum(content)}))

    def check(self, facts: Mapping[str, Any]) -> None:
        """``OtptError`` unless ``facts`` are those that the calibration was made for; see :attr:`facts`."""
        reason = difference(self.facts, facts)
        if reason:
            raise OtptError(
                f"The calibration was made for {reason}; make one for these with 'otpt calibrate', or leave it out."
            )


def read_calibration(path: str | Path) -> Calibration:
    """The calibration in a file; :class:`OtptError` if it is damaged or of another version."""
    path = Path(os.path.expanduser(path))
    content = read_json(path, _WHAT)
    if not isinstance(content, dict) or "checksum" not in content or "format" not in content:
        raise OtptError(f"The file {str(path)!r} is not a {_WHAT}; expected one that 'otpt calibrate' wrote.")
    if content["format"] != FORMAT:
        raise OtptError(
            f"The {_WHAT} {str(path)!r} has format {content['format']!r}, but this version of otpt reads {FORMAT}; "
            "make it again with 'otpt calibrate'."
        )
    checksum = content.pop("checksum")
    try:
        fault = "its checksum is wrong" if checksum != _checksum(content) else fault_in(content)
    except ValueError:  # nan, or letters that UTF-8 cannot hold: never written
        fault = "it holds values that no calibration has"
    if fault:
        raise OtptError(f"The {_WHAT} {str(path)!r} is damaged: {fault}; make it again with 'otpt calibrate'.")
    conformal = content["conformal"]
    return Calibration(
        facts=content["for"],
        origin=content["origin"],
        labels=content["labels"],
        map=CalibrationMap(content["map"]["kind"], content["map"]["parameters"]),
        cross_validation=content["cross_validation"],
        reliability=content["reliability"],
        bins=content["bins"],
        scores={kind: {int(c): own for c, own in by.items()} for kind, by in conformal["scores"].items()},
        raps=conformal["raps"],
        confidences=np.array(content["confidences"], np.float64),
        correct=np.array([each == "1" for each in content["correct"]], np.bool_),
    )


def _checksum(content: Mapping[str, Any]) -> str:
    """Of the values, however the file is laid out."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
