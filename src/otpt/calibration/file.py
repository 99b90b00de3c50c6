"""A calibration and its file: JSON with a checksum. Reading it runs no code of the file.

It says what it was made for (model, method, classes, prompt, views), and is refused for anything else: the map, the
conformal scores and the confidences in it are those of one method's probabilities.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)
from pydantic import model_validator as validator

from otpt.calibration.maps import CalibrationMap, Floats
from otpt.calibration.sets import SETS
from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically
from otpt.metrics.binned import ReliabilityBins, bin_edges

FORMAT = 2
_WHAT = "calibration file"


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    name: str
    fingerprint: str


class _Method(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    numbers: dict[str, Any]


class _Facts(BaseModel):
    """What a calibration is for."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: _Model
    method: _Method
    classes: Annotated[list[str], Field(min_length=2)]
    prompt: Any
    views: Any
    official_precision: Any


class Diagram(BaseModel):
    """A reliability diagram; None in empty bins."""

    model_config = ConfigDict(frozen=True)

    counts: Annotated[list[NonNegativeInt], Field(min_length=1)]
    confidence: list[FiniteFloat | None]
    accuracy: list[FiniteFloat | None]


class Raps(BaseModel):
    """λ and k of RAPS."""

    model_config = ConfigDict(frozen=True)

    penalty: FiniteFloat
    free_ranks: NonNegativeInt


class Calibration(BaseModel):
    """What labelled images showed of one method with one model and class list.

    Attributes:
        facts: what it is for, as plain data: ``model``, ``method``, ``classes``, ``prompt``, ``views``,
            ``official_precision``.
        origin: the labelled images, for people: data set, its fingerprint, seed.
        labels: their number.
        map: of probabilities, chosen by ``cross_validation`` (mean NLL of each candidate).
        reliability: metrics before and after the map, on images that it was not fitted on: {metric: [value, low,
            high]} each; bins: their reliability diagrams.
        scores: conformal scores of the true class, by kind of set and class index, in rising order.
        raps: numbers of RAPS.
        confidences: before the map, falling; correct: "1" where the prediction is correct, "0" where it is wrong.
    """

    model_config = ConfigDict(frozen=True)

    facts: dict[str, Any] = Field(validation_alias=AliasChoices("for", "facts"), serialization_alias="for")
    origin: dict[str, Any] = {}
    labels: PositiveInt
    map: CalibrationMap
    cross_validation: dict[str, FiniteFloat]
    reliability: dict[str, dict[str, list[float]]]
    bins: dict[str, Diagram]
    scores: dict[str, dict[int, list[FiniteFloat]]]
    raps: Raps
    confidences: list[FiniteFloat]
    correct: Annotated[str, Field(pattern="^[01]*$")]

    @validator(mode="after")
    def _consistent(self) -> Calibration:
        classes = len(_Facts.model_validate(self.facts).classes)
        if len(self.confidences) != len(self.correct):
            raise ValueError("confidences and correct differ in length")
        if not set(SETS) <= set(self.scores):
            raise ValueError(f"scores of {', '.join(SETS)} are needed")
        if any(len({len(d.counts), len(d.confidence), len(d.accuracy)}) > 1 for d in self.bins.values()):
            raise ValueError("columns of a reliability diagram differ in length")
        rows = np.stack([np.full(classes, 1.0), np.arange(1.0, classes + 1)])
        try:
            with np.errstate(all="ignore"):
                found = self.map(rows / rows.sum(axis=1, keepdims=True)).sum(axis=1)
        except (KeyError, TypeError) as error:
            raise ValueError(f"the map has other parameters ({error})") from error
        if not np.allclose(found, 1.0, atol=1e-3):
            raise ValueError("the map does not give probabilities")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class list, in label order."""
        return tuple(self.facts["classes"])

    @property
    def ranked(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """(N,) confidences, falling, and whether these predictions are correct."""
        return np.array(self.confidences, np.float64), np.array([each == "1" for each in self.correct], np.bool_)

    @cached_property
    def digest(self) -> str:
        """Checksum of the whole content."""
        return _checksum(self.as_dict())

    @property
    def diagram(self) -> dict[str, ReliabilityBins]:
        """The reliability diagrams before and after the map."""
        return {
            name: ReliabilityBins(
                bin_edges(len(own.counts)),
                np.array(own.counts, np.int64),
                np.array(own.accuracy, np.float64),
                np.array(own.confidence, np.float64),
                self.labels,
            )
            for name, own in self.bins.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without the checksum."""
        return {"format": FORMAT, **self.model_dump(mode="json", by_alias=True)}

    def write(self, path: str | Path) -> None:
        """Write the file atomically."""
        content = self.as_dict()
        write_atomically(Path(path), as_json({**content, "checksum": _checksum(content)}))

    def check(self, facts: Mapping[str, Any]) -> None:
        """Raise unless ``facts`` are those that the calibration was made for; see :attr:`facts`."""
        reason = _difference(self.facts, facts)
        if reason:
            raise OtptError(
                f"The calibration was made for {reason}; make one for these with 'otpt calibrate', or leave it out."
            )


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; :class:`OtptError` if it is corrupt or of another version."""
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
        if checksum != _checksum(content):
            raise ValueError("its checksum is wrong")
        return Calibration.model_validate({name: value for name, value in content.items() if name != "format"})
    except ValueError as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = str(error) if first is None else f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
        raise OtptError(
            f"The {_WHAT} {str(path)!r} is damaged: {reason}; make it again with 'otpt calibrate'."
        ) from error


def _checksum(content: Mapping[str, Any]) -> str:
    """Checksum of the values, however the file is formatted."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _difference(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Where the purpose of a calibration and the requested one differ; "" where they do not."""
    if own["model"]["fingerprint"] != other["model"]["fingerprint"]:
        return "the model {}, not for {}".format(
            *(f"{each['model']['name']!r} ({each['model']['fingerprint'][:8]})" for each in (own, other))
        )
    mine, wanted = own["method"], other["method"]
    if mine["numbers"] != wanted["numbers"]:
        if mine["name"] != wanted["name"]:
            return f"the method {mine['name']!r}, not for {wanted['name']!r}"
        name = next(each for each in {**mine["numbers"], **wanted["numbers"]}
                    if mine["numbers"].get(each) != wanted["numbers"].get(each))  # fmt: skip
        values = mine["numbers"].get(name), wanted["numbers"].get(name)
        return f"the method {mine['name']!r} with {name} = {values[0]!r}, not with {values[1]!r}"
    if own["classes"] != other["classes"]:
        first, second = own["classes"], other["classes"]
        at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
        where = "" if at is None else f" (class {at} is {first[at]!r}, not {second[at]!r})"
        return f"{len(first)} classes, not for these {len(second)}{where}"
    for key in ("prompt", "views", "official_precision"):
        if own[key] != other[key]:
            return f"{key.replace('_', ' ')} {own[key]!r}, not for {other[key]!r}"
    return ""
