"""Results of images: predictions and failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.rejection import REJECTED

if TYPE_CHECKING:
    from otpt.calibration import Calibrated
    from otpt.groups import Answer, Groups
    from otpt.methods import Method, Output
    from otpt.settings import Settings


class Scored(TypedDict):
    """Class and probability in the format of Hugging Face pipelines."""

    score: float
    label: str


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Prediction of one image by one method.

    Also a sequence like the result of Hugging Face's zero-shot pipeline: ``{"score": …, "label": …}`` per class, most
    probable first.

    Attributes:
        label: name of the most probable class.
        confidence: probability of that class.
        index: index of that class.
        probabilities: (C,) float64, summing to one; independent of each other with ``multi_label``.
        class_names: names of all classes.
        method: name of the method.
        flags: unusual events (:data:`otpt.methods.KEPT_INIT`); usually empty.
        extras: further numbers of the method, such as ``mean_cosine``, the mean cosine similarity between the text
            features of different classes.
        set: prediction set, most probable class first; None without ``coverage=``.
        abstained: whether the confidence is too low for the requested risk; None without ``risk=``.
        rejected: whether the image fits none of the classes; None without ``reject=``.
        grouping: groups of the classes, for :attr:`groups` and :meth:`back_off`.

    Example:
        >>> import numpy as np
        >>> found = Prediction("cat", 0.8, 0, np.array([0.8, 0.2]), ("cat", "dog"), method="zero-shot")
        >>> print(found)
        zero-shot: cat 0.80, dog 0.20
        >>> found[0]
        {'score': 0.8, 'label': 'cat'}
    """

    label: str
    confidence: float
    index: int
    probabilities: npt.NDArray[np.float64]
    class_names: tuple[str, ...]
    method: str
    flags: tuple[str, ...] = ()
    extras: Mapping[str, float] = field(default_factory=dict)
    set: tuple[str, ...] | None = None
    abstained: bool | None = None
    rejected: bool | None = None
    grouping: Groups | None = None

    @property
    def groups(self) -> dict[str, float] | None:
        """Probability of each group of classes, or None without groups."""
        return None if self.grouping is None else self.grouping.probabilities(self.probabilities)

    def back_off(self, threshold: float) -> Answer | None:
        """Return the most specific label or group whose probability reaches ``threshold``, or None.

        Requires ``set_classes(…, groups=…)``. Example: "dog, 93 %" if no breed reaches the threshold.
        """
        if self.grouping is None:
            raise OtptError("back_off requires groups of classes; set them with set_classes(names, groups={…}).")
        return self.grouping.back_off(self.probabilities, self.class_names, threshold)

    @property
    def mean_cosine(self) -> float:
        """Mean cosine similarity between the text features of different classes; nan without text features."""
        return self.extras.get("mean_cosine", math.nan)

    @property
    def unknown_score(self) -> float:
        """Rejection score, high for images that fit none of the classes; nan without ``reject=``."""
        return self.extras.get("unknown_score", math.nan)

    def labels_above(self, threshold: float = 0.5) -> list[str]:
        """Return the labels with probability at least ``threshold``, most probable first, for ``multi_label``."""
        return [name for name, score in self.top(len(self)) if score >= threshold]

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the ``count`` most probable classes as (name, probability), best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[i], float(self.probabilities[i])) for i in order]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; non-finite numbers become None."""
        found = {each.name: _plain(getattr(self, each.name)) for each in fields(self) if each.name != "grouping"}
        return found if self.groups is None else {**found, "groups": self.groups}

    def __repr__(self) -> str:
        return f"Prediction(label={self.label!r}, confidence={self.confidence:.2f}, method={self.method!r})"

    def __str__(self) -> str:
        return f"{self.method}: " + ", ".join(f"{name} {score:.2f}" for name, score in self.top(3))

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{score:.3f}</td></tr>" for name, score in self.top(3))
        return f"<table><tr><th>{escape(self.method)}</th><th>probability</th></tr>{rows}</table>"

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
    """Result of an image that cannot be used, with ``errors="return"``.

    Attributes:
        image: path of the image, or "image N".
        position: index in the list.
        error: reason.

    Example:
        >>> import otpt
        >>> clf = otpt.load("pocket", method="zero-shot", device="cpu", classes=["cat", "dog"])
        >>> [failure] = clf.predict(["missing.png"], errors="return")
        >>> failure.image
        'missing.png'
    """

    image: str
    position: int
    error: OtptError

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {"image": self.image, "position": self.position, "error": str(self.error)}


def predictions(
    methods: Sequence[Method], outputs: Sequence[Output], settings: Settings, calibrations: Mapping[str, Calibrated]
) -> dict[str, Prediction]:
    """Return {method name: prediction} of one image, calibrated if ``calibrations`` contains the method."""
    found, names = {}, settings.classes
    for method, output in zip(methods, outputs, strict=True):
        index, probabilities, extras = output.index, output.probabilities, dict(output.extras)
        classes, abstained = None, None
        if method.name in calibrations:
            answer = calibrations[method.name].answer(probabilities, index)
            index, probabilities, abstained = answer.index, answer.probabilities, answer.abstained
            classes = None if answer.classes is None else tuple(names[c] for c in answer.classes)
            extras["uncalibrated_confidence"] = output.confidence
        found[method.name] = Prediction(
            label=names[index],
            confidence=float(probabilities.max()),
            index=index,
            probabilities=probabilities,
            class_names=names,
            method=method.name,
            flags=output.flags,
            extras=extras,
            set=classes,
            abstained=abstained,
            rejected=REJECTED in output.flags if "unknown_score" in extras else None,
            grouping=settings.grouping,
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
