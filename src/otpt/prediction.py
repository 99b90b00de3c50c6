"""Results of images: predictions and failures, one or many.

predictions = clf.predict(["cat.jpg", "dog.jpg"], errors="return")
predictions.to_pandas()                # image, label, confidence, method …
predictions.plot()                     # the images with their labels
predictions[0].top(3)                  # [('cat', 0.93), …]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn, NotRequired, SupportsIndex, TypedDict, overload

import numpy as np
import numpy.typing as npt
from PIL import Image
from typing_extensions import TypeVar

from otpt.arguments import checked
from otpt.calibration import Calibrated
from otpt.decision import Decision
from otpt.errors import OtptError
from otpt.groups import Answer, Groups
from otpt.images import ImageSource
from otpt.methods import MULTI_LABEL, Method, Output, Task
from otpt.plots import Panel, draw_grid, draw_panel
from otpt.rejection import REJECTED
from otpt.video import open_still

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

IMPOSSIBLE = "nothing-within"
"""Flag of a prediction within a group of which no class has any probability."""
_TABLES = ("to_dataframe", "to_df", "df", "dataframe", "to_frame", "to_csv", "to_dict", "to_polars")
_PLAIN = Decision()
_REPR_ROWS = 5
_HTML_ROWS = 20
_PANEL_CLASSES = 3
_PLOT_CLASSES = 10


class Scored(TypedDict):
    """Class and probability in the format of Hugging Face pipelines."""

    score: float
    label: str


class PredictionDict(TypedDict):
    """A :class:`Prediction` for JSON; see :meth:`Prediction.to_dict`."""

    label: str
    confidence: float | None
    index: int
    probabilities: list[float | None]
    class_names: list[str]
    method: str
    flags: list[str]
    extras: dict[str, float | None]
    set: list[str] | None
    abstained: bool | None
    rejected: bool | None
    image: NotRequired[str]
    groups: NotRequired[dict[str, float]]


class FailureDict(TypedDict):
    """A :class:`Failure` for JSON."""

    image: str
    position: int
    error: str


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
        image: name of the image; not compared.
        threshold: default threshold of :meth:`labels_above` and :meth:`back_off`.
        source: function that returns the image, for :meth:`plot`; neither compared nor copied nor pickled.

    Example:
        >>> import numpy as np
        >>> prediction = Prediction("cat", 0.8, 0, np.array([0.8, 0.2]), ("cat", "dog"), method="zero-shot")
        >>> print(prediction)
        zero-shot: cat 0.80, dog 0.20
        >>> prediction[0]
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
    image: str = ""
    threshold: float = 0.5
    source: Callable[[], ImageSource] | None = None

    @property
    def groups(self) -> dict[str, float] | None:
        """Probability of each group of classes, or None without groups."""
        return None if self.grouping is None else self.grouping.probabilities(self.probabilities)

    def back_off(self, threshold: float | None = None) -> Answer | None:
        """Return the most specific label or group whose probability reaches the threshold, or None.

        Requires ``set_classes(…, groups=…)``. Example: "dog, 93 %" if no breed reaches the threshold.

        Args:
            threshold: smallest probability of an answer; :attr:`threshold` by default.
        """
        if self.grouping is None:
            raise OtptError("back_off requires groups of classes; set them with set_classes(names, groups={…}).")
        return self.grouping.back_off(self.probabilities, self.class_names, self._threshold_or(threshold))

    @property
    def mean_cosine(self) -> float:
        """Mean cosine similarity between the text features of different classes; nan without text features."""
        return self.extras.get("mean_cosine", math.nan)

    @property
    def unknown_score(self) -> float:
        """Rejection score, high for images that fit none of the classes; nan without ``reject=``."""
        return self.extras.get("unknown_score", math.nan)

    def labels_above(self, threshold: float | None = None) -> list[str]:
        """Return the labels whose probability reaches the threshold, most probable first, for ``multi_label``.

        Args:
            threshold: smallest probability of a label; :attr:`threshold` by default.
        """
        least = self._threshold_or(threshold)
        return [name for name, score in self.top(len(self)) if score >= least]

    @checked
    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the ``count`` most probable classes as (name, probability), best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[i], float(self.probabilities[i])) for i in order]

    def to_dict(self) -> PredictionDict:
        """Return a dict for JSON; non-finite numbers become None."""
        result: PredictionDict = {
            "label": self.label,
            "confidence": _finite(self.confidence),
            "index": int(self.index),
            "probabilities": [_finite(probability) for probability in self.probabilities],
            "class_names": list(self.class_names),
            "method": self.method,
            "flags": list(self.flags),
            "extras": {str(name): _finite(number) for name, number in self.extras.items()},
            "set": None if self.set is None else list(self.set),
            "abstained": None if self.abstained is None else bool(self.abstained),
            "rejected": None if self.rejected is None else bool(self.rejected),
        }
        if self.image:
            result["image"] = self.image
        if self.groups is not None:
            result["groups"] = self.groups
        return result

    def plot(self) -> Figure:
        """Return a figure with the image, if it can be opened again, and bars of the ten most probable classes."""
        panel = _panel(self, self.image or self.method, _PLOT_CLASSES)
        return draw_panel(panel)

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
        if not isinstance(other, Prediction):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash((self.method, self.class_names, self.probabilities.tobytes()))

    def __getstate__(self) -> dict[str, object]:
        """Exclude the source, which may be a function or an open file."""
        return {name: value for name, value in vars(self).items() if name != "source"}

    def _compared(self) -> tuple[PredictionDict, float]:
        values = self.to_dict()
        values.pop("image", None)
        return values, self.threshold

    def _threshold_or(self, threshold: float | None) -> float:
        value = self.threshold if threshold is None else threshold
        if not 0 <= value <= 1:
            raise OtptError(f"The threshold is {value!r}; expected a probability from 0 to 1.")
        return value


@dataclass(frozen=True, eq=False)
class Failure:
    """Result of an image that cannot be used, with ``errors="return"``.

    Failures are equal if image, position and message are.

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

    def to_dict(self) -> FailureDict:
        """Return a dict for JSON."""
        return {"image": self.image, "position": self.position, "error": str(self.error)}

    def _repr_html_(self) -> str:
        cells = f"<td>{escape(self.image)}</td><td>{escape(str(self.error))}</td>"
        return f"<table><tr><th>image</th><th>error</th></tr><tr>{cells}</tr></table>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Failure):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.image, self.position, str(self.error)))


Result = TypeVar("Result", bound=Prediction | Failure, default=Prediction | Failure)
"""What an image gives: a prediction, or with ``errors="return"`` also a failure."""


class Predictions(list[Result]):
    """Results of several images, in their order: a list of :class:`Prediction` and :class:`Failure`.

    Example:
        >>> import numpy as np
        >>> cat = Prediction("cat", 0.8, 0, np.array([0.8, 0.2]), ("cat", "dog"), "zero-shot", image="cat.png")
        >>> dog = Prediction("dog", 0.7, 1, np.array([0.3, 0.7]), ("cat", "dog"), "zero-shot", image="dog.png")
        >>> predictions = Predictions([cat, dog])
        >>> predictions
        Predictions(2 images)
          cat.png: cat 0.80
          dog.png: dog 0.70
        >>> predictions.labels
        ['cat', 'dog']
        >>> predictions.to_pandas().columns.tolist()
        ['image', 'label', 'confidence', 'method']
    """

    def __getattr__(self, name: str) -> NoReturn:
        hint = "; write to_pandas()" if name.lower() in _TABLES else ""
        raise AttributeError(f"Predictions have no attribute {name!r}{hint}.")

    @property
    def labels(self) -> list[str | None]:
        """Label of each image; None for an image that cannot be used."""
        return [result.label if isinstance(result, Prediction) else None for result in self]

    @property
    def failures(self) -> list[Failure]:
        """Images that cannot be used."""
        return [result for result in self if isinstance(result, Failure)]

    def to_pandas(self, *, probabilities: bool = False) -> pd.DataFrame:
        """Return a data frame with one row per image.

        Columns: ``image`` (name, or "image N"), ``label``, ``confidence`` and ``method``. If any image has them, also
        ``set``, ``abstained``, ``rejected``, ``labels_above`` (several labels per image), ``back_off`` and
        ``back_off_confidence`` (groups, at the prediction's threshold), ``p(group)`` for each group, ``flags`` and
        ``error``. The label of an image that cannot be used is None, its confidence nan.

        Args:
            probabilities: whether to add a column ``p(class)`` per class; nan where an image has other classes.
        """
        import pandas as pd

        facts = [_facts(name, result) for name, result in self._named()]
        group_scores = [_group_scores(result) for result in self]
        columns = {
            **{name: [row.get(name) for row in facts] for name in _ALWAYS},
            **_columns(facts, _SOMETIMES, missing=None),
            **_columns(group_scores, _keys(group_scores), missing=math.nan),
            **_columns(facts, _LAST, missing=None),
        }
        frame = pd.DataFrame({name: _series(values) for name, values in columns.items()})
        if not probabilities:
            return frame
        names, table = _probability_table(self)
        return pd.concat([frame, pd.DataFrame(table, columns=names)], axis=1)

    def plot(self, columns: int = 4, limit: int = 12) -> Figure:
        """Return a figure with the images, their labels, and bars of the three most probable classes.

        An image that cannot be opened again, such as one of a pickled prediction, is replaced by a text.

        Args:
            columns: largest number of images in a row.
            limit: largest number of images; the first ones are shown.
        """
        for name, value in (("columns", columns), ("limit", limit)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OtptError(f"{name} is {value!r}; expected an integer of at least 1.")
        if not self:
            raise OtptError("There are no predictions to plot; predict at least one image.")
        panels = [_panel(result, name, _PANEL_CLASSES) for name, result in islice(self._named(), limit)]
        footnote = f"… and {len(self) - limit} more" if len(self) > limit else ""
        return draw_grid(panels, columns, footnote)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> Predictions[Result]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Result | Predictions[Result]:
        if isinstance(index, slice):
            return Predictions(super().__getitem__(index))
        return super().__getitem__(index)

    def __add__(self, other: list[Result]) -> Predictions[Result]:  # type: ignore[override]
        return Predictions([*self, *other])

    def copy(self) -> Predictions[Result]:
        """Return a shallow copy."""
        return Predictions(self)

    def __repr__(self) -> str:
        count = "1 image" if len(self) == 1 else f"{len(self)} images"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        lines = [f"Predictions({count}{failed})"]
        for name, result in islice(self._named(), _REPR_ROWS):
            if isinstance(result, Failure):
                lines.append(f"  {name}: {result.error}")
            else:
                lines.append(f"  {name}: {result.label} {result.confidence:.2f}")
        if len(self) > _REPR_ROWS:
            lines.append(f"  … and {len(self) - _REPR_ROWS} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [_html_row(name, result) for name, result in islice(self._named(), _HTML_ROWS)]
        if len(self) > _HTML_ROWS:
            rows.append(f'<tr><td colspan="3">… and {len(self) - _HTML_ROWS} more</td></tr>')
        return f"<table><tr><th>image</th><th>label</th><th>confidence</th></tr>{''.join(rows)}</table>"

    def _named(self) -> Iterator[tuple[str, Prediction | Failure]]:
        """Yield the results with the names of their images."""
        for number, result in enumerate(self, start=1):
            yield result.image or f"image {number}", result


_ALWAYS = ("image", "label", "confidence", "method")
_SOMETIMES = ("set", "abstained", "rejected", "labels_above", "back_off")
_LAST = ("flags", "error")


def make_predictions(
    methods: Sequence[Method],
    outputs: Sequence[Output],
    task: Task,
    calibrations: Mapping[str, Calibrated],
    *,
    image: str = "",
    source: Callable[[], ImageSource] | None = None,
    decision: Decision = _PLAIN,
) -> dict[str, Prediction]:
    """Return {method name: prediction} of one image, calibrated if ``calibrations`` contains the method.

    Args:
        methods: methods of the outputs.
        outputs: output of each method.
        task: classes and their groups.
        calibrations: calibrations by method name.
        image: name of the image.
        source: function that returns the image, for plots.
        decision: its ``threshold`` is the default of :meth:`Prediction.labels_above` and :meth:`Prediction.back_off`,
            and its ``within`` restricts predictions to a group.
    """
    names = task.classes
    result = {}
    for method, output in zip(methods, outputs, strict=True):
        index = output.index
        probabilities = output.probabilities
        extras = dict(output.extras)
        prediction_set = None
        abstained = None
        if method.name in calibrations:
            answer = calibrations[method.name].answer(probabilities, index)
            index = answer.index
            probabilities = answer.probabilities
            abstained = answer.abstained
            prediction_set = None if answer.classes is None else tuple(names[c] for c in answer.classes)
            extras["uncalibrated_confidence"] = output.confidence
        prediction = Prediction(
            label=names[index],
            confidence=float(probabilities.max()),
            index=index,
            probabilities=probabilities,
            class_names=names,
            method=method.name,
            flags=output.flags,
            extras=extras,
            set=prediction_set,
            abstained=abstained,
            rejected=REJECTED in output.flags if "unknown_score" in extras else None,
            grouping=task.groups,
            image=image,
            threshold=decision.threshold,
            source=source,
        )
        result[method.name] = prediction if decision.within is None else _restrict(prediction, decision.within)
    return result


def _restrict(prediction: Prediction, within: str) -> Prediction:
    """Return a prediction among the classes of a group: P(c | group) = P(c) / P(group)."""
    assert prediction.grouping is not None
    members = list(prediction.grouping.members[within])
    names = tuple(prediction.class_names[position] for position in members)
    joint = prediction.probabilities[members]
    of_group = float(joint.sum())
    flags = prediction.flags
    if of_group > 0:
        probabilities = joint / of_group
    else:
        probabilities = np.full(len(members), 1 / len(members))
        flags = (*flags, IMPOSSIBLE)
    index = members.index(prediction.index) if prediction.index in members else int(probabilities.argmax())
    extras = {name: number for name, number in prediction.extras.items() if name != "uncalibrated_confidence"}
    return replace(
        prediction,
        label=names[index],
        confidence=float(probabilities.max()),
        index=index,
        probabilities=probabilities,
        class_names=names,
        flags=flags,
        extras={**extras, "within": min(of_group, 1.0)},
        grouping=prediction.grouping.inside(within),
    )


def _finite(number: float) -> float | None:
    """Convert a number of numpy to one of Python; None if it is not finite."""
    if isinstance(number, np.generic):
        number = number.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _facts(name: str, result: Prediction | Failure) -> dict[str, object]:
    """Return the cells of a data frame's row that are not probabilities of classes and groups."""
    if isinstance(result, Failure):
        return {"image": name, "confidence": math.nan, "error": str(result.error)}
    row: dict[str, object] = {
        "image": name,
        "label": result.label,
        "confidence": result.confidence,
        "method": result.method,
    }
    optional = {"set": result.set, "abstained": result.abstained, "rejected": result.rejected}
    row.update({column: value for column, value in optional.items() if value is not None})
    if result.method == MULTI_LABEL:
        row["labels_above"] = tuple(result.labels_above())
    if result.grouping is not None:
        answer = result.back_off()
        row["back_off"] = None if answer is None else answer.name
    if result.flags:
        row["flags"] = result.flags
    return row


def _group_scores(result: Prediction | Failure) -> dict[str, float]:
    """Return the probabilities of the answer that the prediction backs off to, and of each group."""
    if isinstance(result, Failure) or result.groups is None:
        return {}
    answer = result.back_off()
    scores = {"back_off_confidence": math.nan if answer is None else answer.confidence}
    for group, probability in result.groups.items():
        scores[f"p({group})"] = probability
    return scores


def _probability_table(results: Sequence[Prediction | Failure]) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the names of the columns of all classes, and the probabilities (images, columns) with nan for no class."""
    columns: dict[str, int] = {}
    places: dict[tuple[str, ...], list[int]] = {}  # columns of a class list
    for result in results:
        if isinstance(result, Prediction) and result.class_names not in places:
            names = _column_names(result.class_names)
            places[result.class_names] = [columns.setdefault(name, len(columns)) for name in names]
    table = np.full((len(results), len(columns)), math.nan)
    for row, result in zip(table, results, strict=True):
        if isinstance(result, Prediction):
            row[places[result.class_names]] = result.probabilities
    return list(columns), table


def _column_names(class_names: Sequence[str]) -> list[str]:
    """Return unique names of the columns of classes, two of which may have the same name."""
    columns: dict[str, None] = {}
    for name in class_names:
        column = f"p({name})"
        number = 2
        while column in columns:
            column = f"p({name} #{number})"
            number += 1
        columns[column] = None
    return list(columns)


def _keys(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the keys of all rows, in the order in which they occur."""
    keys: dict[str, None] = {}
    for row in rows:
        keys.update(dict.fromkeys(row))
    return list(keys)


def _columns(
    rows: Sequence[Mapping[str, object]], names: Iterable[str], *, missing: float | None
) -> dict[str, list[object]]:
    """Return those of the columns that occur in a row."""
    present = set(_keys(rows))
    return {name: [row.get(name, missing) for row in rows] for name in names if name in present}


def _series(values: list[object]) -> pd.Series:
    """Return a column of a data frame; None stays None."""
    import pandas as pd

    return pd.Series(values, dtype=object if any(value is None for value in values) else None)


def _html_row(name: str, result: Prediction | Failure) -> str:
    image = f"<td>{escape(name)}</td>"
    if isinstance(result, Failure):
        return f'<tr>{image}<td colspan="2"><em>{escape(str(result.error))}</em></td></tr>'
    remark = _remark(result)
    label = escape(result.label) + (f" <small>({escape(remark)})</small>" if remark else "")
    width = round(100 * result.confidence) if math.isfinite(result.confidence) else 0
    bar = f'<div style="display:inline-block;width:{width}px;height:0.7em;background:#56B4E9;margin-right:6px"></div>'
    return f"<tr>{image}<td>{label}</td><td style='text-align:left'>{bar}{result.confidence:.2f}</td></tr>"


def _remark(prediction: Prediction) -> str:
    """Return what a reader of the label must know: the image was rejected, or the method abstains."""
    if prediction.rejected:
        return "rejected"
    return "abstained" if prediction.abstained else ""


def _panel(result: Prediction | Failure, name: str, classes: int) -> Panel:
    """Return the panel of a result with its ``classes`` most probable classes."""
    shown_name = PurePath(name).name or name
    if isinstance(result, Failure):
        return Panel("failed", shown_name, (), note=str(result.error), failed=True)
    return Panel(
        title=result.label,
        subtitle=shown_name,
        scores=result.top(classes),
        confidence=result.confidence,
        remark=_remark(result),
        image=_open_again(result),
        note="image not available",
    )


def _open_again(prediction: Prediction) -> Image.Image | None:
    if prediction.source is None:
        return None
    try:
        return open_still(prediction.source())
    except Exception:  # the file may be gone by now, and the source may be a function of the user
        return None
