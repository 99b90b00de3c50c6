"""Labels for pipelines of Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

import numpy as np
import numpy.typing as npt

from otpt.classifier import BACKBONE_OPTIONS, Classifier, load, read_records
from otpt.data.sources import IMAGE_COLUMNS, is_remote, read_address
from otpt.errors import OtptError
from otpt.images import ImageSource, NamedImage, is_url
from otpt.prediction import Failure

Column = npt.NDArray[np.generic] | Sequence[object]
"""Column of a batch of Ray Data."""


class Classify:
    """Label the batches of a Ray data set, as a class for ``ray.data.Dataset.map_batches``.

    Images may be file contents, paths, addresses or arrays; a corrupt one becomes a row with an ``error``. The other
    columns stay, and ``label``, ``confidence`` and ``error`` are added; ``set`` with ``coverage=``, ``rejected`` with
    ``reject=``, ``abstained`` with ``risk=``, ``group_probabilities`` with ``groups=``, and with ``multi_label=`` the
    ``labels`` that are more probable than not. The model is loaded once per actor, at the first batch.

    Args:
        backbone: the name of a model, as in :func:`otpt.load`.
        classes: class names; optional with ``examples=``.
        method: a name; the default method otherwise.
        column: the column with the images; a known name such as "bytes", "image" or "path" by default.
        options: options of :func:`otpt.load`: ``views=16``, ``precision="bf16"``, ``calibration="cal.json"`` …
    """

    def __init__(
        self,
        backbone: str,
        classes: Sequence[str] = (),
        method: str | None = None,
        *,
        column: str | None = None,
        **options: object,
    ) -> None:
        self._backbone, self._column = backbone, column
        self._options: dict[str, object] = {"classes": tuple(classes), "method": method, **options}
        of_model = {"method", "device", "urls", *BACKBONE_OPTIONS}
        fields = {name: value for name, value in self._options.items() if name not in of_model}
        task, protocol, _ = read_records(method, fields)  # fail early
        default = protocol.for_task(task).methods[0]
        if default.scope == "stream":
            raise OtptError(
                f"Method {default.name!r} carries a state from image to image, but workers take batches in any order; "
                "take a method that predicts each image by itself."
            )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_classifier"}

    @cached_property
    def _classifier(self) -> Classifier:
        make: Callable[..., Classifier] = load
        return make(self._backbone, **self._options)

    def __call__(self, batch: Mapping[str, Column]) -> dict[str, object]:
        """Return the batch with predictions in place of the images; paths stay."""
        column = self._column or next((name for name in IMAGE_COLUMNS if name in batch), "")
        if column not in batch:
            raise OtptError(f"A batch has the columns {', '.join(batch)}; name the one of the images with column=.")
        images = [NamedImage(f"row {i}", partial(_read, value)) for i, value in enumerate(batch[column])]
        columns: dict[str, object] = {name: values for name, values in batch.items() if name != column}
        if images and isinstance(batch[column][0], str):
            columns[column] = batch[column]
        answers = list(self._classifier.stream(images))
        predictions = [None if isinstance(answer, Failure) else answer for answer in answers]
        errors = [str(answer.error) if isinstance(answer, Failure) else "" for answer in answers]
        columns["label"] = np.array([None if p is None else p.label for p in predictions], object)
        columns["confidence"] = np.array([np.nan if p is None else p.confidence for p in predictions], np.float64)
        task, decision = self._classifier.task, self._classifier.decision
        if decision.coverage is not None:
            columns["set"] = [[] if p is None else list(p.set or ()) for p in predictions]
        if task.multi_label:
            columns["labels"] = [[] if p is None else p.labels_above() for p in predictions]
        if task.groups is not None:
            columns["group_probabilities"] = [{} if p is None else p.groups for p in predictions]
        for name, option in (("rejected", decision.reject), ("abstained", decision.risk)):
            if option is not None:
                columns[name] = np.array([p is not None and bool(getattr(p, name)) for p in predictions])
        columns["error"] = np.array(errors, object)
        return columns


def _read(value: object) -> ImageSource:
    """Return an image of a batch; an address is read by the thread that needs it."""
    if isinstance(value, str) and is_remote(value) and not is_url(value):
        return read_address(value)
    return cast(ImageSource, value)  # opening it raises for other objects
