"""What a method says of an image, or why there is nothing to say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.rejection.registry import REJECTED


class Scored(TypedDict):
    """A class with its probability, as Hugging Face's pipelines give it."""

    score: float
    label: str


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a method says of an image.

    As a sequence it is what the zero-shot pipeline of Hugging Face returns: ``{"score": …, "label": …}`` of each class,
    the most probable first.

    Attributes:
        label: the name of the most probable class.
        confidence: its probability.
        index: its position in the class list.
        probabilities: (C,) float64, summing to one.
        class_names: all classes.
        method: the method's name.
        flags: what was out of the ordinary (:data:`otpt.methods.KEPT_INIT`); empty as a rule.
        extras: further numbers of the method, such as ``mean_cosine``, the mean cosine similarity between the text
            features of different classes that this image was predicted with.
        labels: the prediction set, most probable class first, where a calibration was asked for a coverage.
        abstained: whether the confidence is too low for the risk that a calibration was asked for; None if it was not.
    """

    label: str
    confidence: float
    index: int
    probabilities: npt.NDArray[np.float64]
    class_names: tuple[str, ...]
    method: str
    flags: tuple[str, ...] = ()
    extras: Mapping[str, float] = field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    abstained: bool | None = None

    @property
    def mean_cosine(self) -> float:
        """See ``extras``; nan for methods without text features."""
        return self.extras.get("mean_cosine", float("nan"))

    @property
    def rejected(self) -> bool:
        """Whether the image fits none of the classes; False where nobody asked (``reject=`` of the classifier)."""
        return REJECTED in self.flags

    @property
    def unknown(self) -> float:
        """The score that this was decided by, high for images that fit no class; nan where nobody asked."""
        return self.extras.get("unknown", float("nan"))

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities, best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[i], float(self.probabilities[i])) for i in order]

    def to_dict(self) -> dict[str, Any]:
        """Plain texts, numbers, lists and dictionaries, ready for JSON; None for a number that is not finite."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    def __len__(self) -> int:
        return len(self.class_names)

    @overload
    def __getitem__(self, rank: int) -> Scored: ...

    @overload
    def __getitem__(self, rank: slice) -> list[Scored]: ...

    def __getitem__(self, rank: int | slice) -> Scored | list[Scored]:
        return list(self)[rank]

    def __iter__(self) -> Iterator[Scored]:
        return ({"score": score, "label": label} for label, score in self.top(len(self)))

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Prediction) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.method, self.class_names, self.probabilities.tobytes()))


@dataclass(frozen=True)
class Failure:
    """In the place of a prediction: an image that could not be used.

    Attributes:
        image: its path, or its place in the list ("image 2").
        position: in the list, from 0.
        error: why.
    """

    image: str
    position: int
    error: OtptError

    def to_dict(self) -> dict[str, Any]:
        """Plain texts and numbers, ready for JSON."""
        return {"image": self.image, "position": self.position, "error": str(self.error)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
