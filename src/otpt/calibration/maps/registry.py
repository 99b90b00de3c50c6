"""Maps of probabilities, fitted on labelled images: which there are, and how many labels each needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from otpt.calibration.maps.inputs import Floats, Integers, as_stored
from otpt.errors import OtptError, unknown
from otpt.functions import resolve

LEAST_LABELS = 20
"""Of any calibration; fewer say next to nothing, whatever is fitted to them."""


@dataclass(frozen=True)
class Kind:
    """A kind of map.

    Attributes:
        module: of this room, with a function ``apply``; fit_name: its function that fits.
        labels: the least number to fit it on; per_class: and the least per class of the list.
        keeps_label: whether the most probable class stays the same.
    """

    name: str
    module: str
    labels: int
    per_class: int = 0
    keeps_label: bool = True
    fit_name: str = "fit"

    @property
    def fit(self) -> Callable[[Floats, Integers], dict[str, Any]]:
        """Probabilities (N, C) and labels (N,) → parameters."""
        return resolve(f"otpt.calibration.maps.{self.module}:{self.fit_name}")

    @property
    def apply(self) -> Callable[[Floats, Mapping[str, Any]], Floats]:
        """Probabilities (N, C) and parameters → probabilities (N, C)."""
        return resolve(f"otpt.calibration.maps.{self.module}:apply")

    def needs(self, classes: int) -> int:
        """How many labels it takes for a list of classes."""
        return max(self.labels, self.per_class * classes)


MAPS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("identity", "identity", LEAST_LABELS),
            Kind("temperature", "temperature", LEAST_LABELS),
            Kind("beta", "beta", 100),
            Kind("isotonic", "isotonic", 500),
            Kind("bias", "linear", 100, per_class=5, keeps_label=False, fit_name="fit_bias"),
            Kind("vector", "linear", 200, per_class=20, keeps_label=False, fit_name="fit_vector"),
        )
    }
)
"""From the simplest on; of equally good ones the first is taken."""

DEFAULT = tuple(name for name, kind in MAPS.items() if kind.keeps_label)
"""Tried without being asked for: a calibration changes confidences, not answers."""


@dataclass(frozen=True)
class CalibrationMap:
    """A fitted map.

    >>> import numpy as np
    >>> CalibrationMap("temperature", {"temperature": 2.0})(np.array([0.8, 0.2])).round(4)
    array([0.6667, 0.3333])
    """

    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in MAPS:
            raise unknown("map", self.kind, MAPS)

    def __call__(self, probabilities: npt.NDArray[Any]) -> Floats:
        """Calibrated probabilities of (…, C), each row summing to one; of their float32 values."""
        rows = as_stored(probabilities)
        found = MAPS[self.kind].apply(rows.reshape(-1, rows.shape[-1]), self.parameters)
        return found.reshape(rows.shape)

    @property
    def keeps_label(self) -> bool:
        """Whether the most probable class stays the same."""
        return MAPS[self.kind].keeps_label

    @property
    def words(self) -> str:
        """The map with its numbers, for people."""
        numbers = (f"{name} {value:.4g}" for name, value in self.parameters.items() if isinstance(value, float))
        shown = ", ".join(numbers)
        return self.kind if not shown or self.kind == "identity" else f"{self.kind} ({shown})"


def fit_map(kind: str, probabilities: Floats, labels: Integers) -> CalibrationMap:
    """A map of one kind."""
    if kind not in MAPS:
        raise unknown("map", kind, MAPS)
    return CalibrationMap(kind, MAPS[kind].fit(as_stored(probabilities), labels))


def candidates(wanted: Sequence[str] | None, labels: int, classes: int) -> list[str]:
    """The maps that this many labels suffice for; an error for one that was asked for and needs more."""
    if isinstance(wanted, str):
        raise OtptError(f"The maps are the single text {wanted!r}; expected a list of names, such as [{wanted!r}].")
    for name in wanted or ():
        if name not in MAPS:
            raise unknown("map", name, MAPS)
        if MAPS[name].needs(classes) > labels:
            raise OtptError(
                f"The map {name!r} was asked for, which needs {MAPS[name].needs(classes)} labels for {classes} "
                f"classes, but there are {labels}; label more images, or take a simpler map."
            )
    chosen = {"identity", *(DEFAULT if wanted is None else wanted)}
    return [name for name, kind in MAPS.items() if name in chosen and kind.needs(classes) <= labels]
