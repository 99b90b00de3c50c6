"""The images worth looking at: where methods are sure of different answers, or sure and wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from otpt.data import Dataset, find_entry, load_dataset, stratified
from otpt.data.dataset import is_own
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.runs import Rows
from otpt.runs.reading import Floats

THUMBNAIL = 128
"""Longer side of a thumbnail in pixels."""

_QUALITY = 72


@dataclass(frozen=True)
class Answer:
    """What a method says of an image."""

    method: str
    label: str
    confidence: float
    correct: bool

    @property
    def percent(self) -> str:
        """The confidence as it is shown; what is not quite sure never reads as 100 %."""
        whole = f"{100 * self.confidence:.0f} %"
        return "> 99 %" if whole == "100 %" and self.confidence < 1 else whole


@dataclass(frozen=True)
class Shown:
    """An image of the page.

    Attributes:
        source: the thumbnail as a data URI; None if the image is not at hand.
    """

    name: str
    label: str
    answers: tuple[Answer, ...]
    source: str | None


class Thumbnails:
    """Images of a data set of a run, if the data are there and are those that the run saw.

    Attributes:
        reason: why there are none; None if there are.
    """

    def __init__(self, config: Mapping[str, Any], root: Path | None) -> None:
        self.reason: str | None = None
        self._data: Dataset | None = None
        name = str(config["name"])
        if is_own(config.get("source")):  # a registered set may have the same name
            name = str(config["source"])
        elif name.startswith("hf:"):  # loading it might fetch it
            self.reason = "The images are not shown: they are on the Hugging Face hub, and nothing is fetched."
            return
        elif not name.startswith("emoji/") and find_entry(name) is None:  # a name is no path
            self.reason = "The images are not shown: the run does not say where they are."
            return
        try:
            found = stratified(load_dataset(name, root=root))  # the order of an evaluation
        except OtptError as error:
            # the first sentence: the others are for who gives the command, not for who reads the page
            self.reason = f"The images are not shown: {str(error).split('. ')[0].rstrip('.')}."
            return
        if found.fingerprint != config["fingerprint"]:
            self.reason = "The images are not shown: the data that are here now are not those that the run saw."
            return
        self._data = found

    def __call__(self, index: int) -> str | None:
        """A thumbnail as a data URI; None if the image cannot be shown."""
        if self._data is None:
            return None
        try:
            return data_uri(open_image(self._data[index].source))
        except OtptError:
            return None


def data_uri(image: Image.Image) -> str:
    """A small JPEG as a data URI."""
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def choose_images(
    rows: Mapping[str, Rows], classes: Sequence[str], thumbnail: Callable[[int], str | None], count: int
) -> tuple[list[Shown], list[Shown]]:
    """Where methods disagree most, and where one is surest and wrong; ``count`` images of each at most.

    Two methods disagree on an image as much as the less sure of them is sure, max over pairs a ≠ b with different
    answers of min(conf_a, conf_b): high where both are sure and one must be wrong.
    """
    common = _common(rows)
    if common is None:
        return [], []
    confidences, predictions, correct, labels, ids, indices = common
    disagreement = _disagreement(confidences, predictions)
    wrong = np.where(correct, 0.0, confidences).max(axis=0)
    methods = list(rows)

    def show(position: int) -> Shown:
        answers = tuple(
            Answer(method, classes[predictions[k, position]], confidences[k, position], bool(correct[k, position]))
            for k, method in enumerate(methods)
        )
        return Shown(ids[position], classes[labels[position]], answers, thumbnail(int(indices[position])))

    return [show(i) for i in _largest(disagreement, count)], [show(i) for i in _largest(wrong, count)]


def _common(rows: Mapping[str, Rows]) -> tuple[Any, ...] | None:
    """(K, N) confidences, predictions, correctness of the images that all K methods predicted; labels, ids, indices."""
    each = list(rows.values())
    shared = set(each[0].indices.tolist()).intersection(*(other.indices.tolist() for other in each[1:]))
    if not shared:
        return None
    wanted = np.array(sorted(shared))
    places = [np.searchsorted(other.indices, wanted) for other in each]
    confidences, predictions, correct = (
        np.stack([getattr(other, name)[at] for other, at in zip(each, places, strict=True)])
        for name in ("confidences", "predictions", "correct")
    )
    first = places[0]
    return confidences, predictions, correct, each[0].labels[first], [each[0].ids[i] for i in first], wanted


def _disagreement(confidences: Floats, predictions: Any) -> Floats:
    """(N,) max over pairs with different answers of the smaller confidence; 0 where all agree."""
    found = np.zeros(confidences.shape[1])
    for a in range(len(confidences)):
        for b in range(a):
            both = np.minimum(confidences[a], confidences[b])
            found = np.maximum(found, np.where(predictions[a] != predictions[b], both, 0.0))
    return found


def _largest(values: Floats, count: int) -> list[int]:
    """Positions of the greatest values above 0, greatest first."""
    order = np.argsort(-values, kind="stable")[:count]
    return [int(i) for i in order if values[i] > 0]
