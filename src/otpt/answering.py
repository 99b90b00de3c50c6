"""What a classifier does behind its interface: text features that are kept, and images on their way to predictions."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, Calibration
from otpt.errors import OtptError, unknown
from otpt.features.given import check_several, given_images
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.images import KEYS, ImageSource, UrlLimits
from otpt.methods import Method, get_method
from otpt.methods.facts import calibration_facts
from otpt.methods.inits.classes import with_classes
from otpt.methods.inits.preparing import check_fit
from otpt.methods.output import Output
from otpt.methods.running.predictor import Predictor
from otpt.methods.task import OWN_NETWORK, Task
from otpt.prediction import Failure, Prediction

_KEPT = 8
"""Text features that a classifier keeps: of class lists under sets of methods, those that were used last."""

Labels = tuple[tuple[str, ...], str | None]
"""Candidate labels of a call and their template."""

CalibrationSource = str | Path | Calibration | Calibrated
"""A file, what was read from it, or what is asked of it beside calibrated probabilities."""


class Answering:
    """A backbone, a method and a task, and the predictors of the class lists that were used last."""

    def __init__(
        self, backbone: Backbone, method: Method, task: Task, *, seed: int, view_key: str, urls: UrlLimits | None
    ) -> None:
        if view_key not in KEYS:
            raise unknown("key of the views", view_key, KEYS)
        if not isinstance(seed, int | np.integer):
            raise OtptError(f"The seed is {seed!r}; expected an integer.")
        self.backbone, self.method = backbone, method
        self.seed, self.view_key, self.urls = seed, view_key, urls
        self._task, self._classes_set = task, False
        self._predictors: OrderedDict[tuple[Labels | None, tuple[Method, ...]], Predictor] = OrderedDict()
        self._calibrations: dict[str, Calibrated] = {}
        refuse_own_network([method])
        check_fit(backbone, task, [method], classes=False)

    def __repr__(self) -> str:
        names = self._task.class_names if self._classes_set else ()
        shown = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
        classes = f"{len(names)} ({shown})" if names else "not set"
        return f"Classifier({self.backbone.name!r}, method={self.method.name!r}, classes: {classes})"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: text features are computed again where they are needed."""
        return {**vars(self), "_predictors": OrderedDict()}

    def _task_for(self, labels: Labels | None) -> Task:
        """The classes that are set, or those of one call."""
        if labels is not None:
            return with_classes(self._task, labels[0], labels[1])
        if not self._classes_set:
            raise OtptError("No classes are set; call set_classes([...]) before predicting.")
        return self._task

    def _predictor(self, methods: tuple[Method, ...], labels: Labels | None = None) -> Predictor:
        """The predictor of these methods and classes; those used last are kept."""
        key = (labels, methods)
        if key not in self._predictors:
            task = self._task_for(labels)
            if not methods:
                raise OtptError("No method was given; expected at least one.")
            refuse_own_network(methods)
            check_fit(self.backbone, task, methods)
            while len(self._predictors) >= _KEPT:
                self._predictors.popitem(last=False)
            self._predictors[key] = Predictor(self.backbone, task, methods)
        self._predictors.move_to_end(key)
        return self._predictors[key]

    def _collect(
        self,
        images: Iterable[ImageSource],
        labels: Labels | None,
        errors: str,
        *,
        method: str | Method | None = None,
        workers: int | None = None,
        one: bool = False,
    ) -> list[Any]:
        """Predictions in order; a bad image raises its error, or leaves a :class:`Failure` in its place.

        ``method`` takes the place of the classifier's.
        """
        if errors not in ("raise", "return"):
            raise OtptError(f"errors was given {errors!r}; expected 'raise' or 'return'.")
        methods = (self.method if method is None else get_method(method),)
        self._check_calibrations(methods, labels)
        found: list[Any] = []
        for position, (task, answer) in enumerate(self._outputs(images, methods, None, workers, labels)):
            if not isinstance(answer, OtptError):
                found.append(self._by_name(answer, methods, labels)[methods[0].name])
            elif errors == "return":
                found.append(Failure(task.key, position, answer))
            else:
                raise answer if one else OtptError(f"Image {position + 1} of the list cannot be used: {answer}")
        return found

    def _outputs(
        self,
        images: Iterable[ImageSource],
        methods: tuple[Method, ...],
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
        labels: Labels | None = None,
    ) -> Iterator[tuple[ImageTask, list[Output] | OtptError]]:
        """(task, outputs of the methods, or why there are none), in order; a task's key is what its image is called."""
        check_several(images)
        predictor = self._predictor(methods, labels)
        options: dict[str, Any] = {"seed": self.seed, "view_key": self.view_key, "urls": self.urls}
        tasks = (
            predictor.task(given.shown, given.source, image_id=given.image_id, **options)
            for given in given_images(images, image_ids)
        )
        return predictor.stream(FeaturePipeline(self.backbone, threads=workers)(tasks))

    def _by_name(
        self, outputs: Sequence[Output], methods: Sequence[Method], labels: Labels | None = None
    ) -> dict[str, Prediction]:
        names = self._task.class_names if labels is None else labels[0]
        return predictions(methods, outputs, names, self._calibrations)

    def _facts(self, method: Method, labels: Labels | None = None) -> dict[str, Any]:
        """What a calibration of a method depends on."""
        task = self._task_for(labels)
        ((prompt, _),) = task.columns([method])
        return calibration_facts(self.backbone, method, prompt, task)

    def _check_calibrations(self, methods: Sequence[Method], labels: Labels | None = None) -> None:
        """``OtptError`` if a calibration of one of the methods was made for something else."""
        for method in methods:
            if method.name in self._calibrations:
                self._calibrations[method.name].calibration.check(self._facts(method, labels))

    def _set(self, task: Task) -> None:
        """A task with classes; its text features are computed now. One that cannot be used changes nothing."""
        before = self._task, self._classes_set
        self._predictors.clear()
        self._task, self._classes_set = task, True
        try:
            self._check_calibrations((self.method,))
            self._predictor((self.method,))  # last: it is kept for the classes that are set
        except OtptError:
            self._task, self._classes_set = before
            raise


def predictions(
    methods: Sequence[Method], outputs: Sequence[Output], names: tuple[str, ...], calibrations: Mapping[str, Calibrated]
) -> dict[str, Prediction]:
    """What the methods say of one image, by their names; calibrated where there is a calibration of that name."""
    found = zip(methods, outputs, strict=True)
    return {method.name: _prediction(method, output, names, calibrations.get(method.name)) for method, output in found}


def _prediction(method: Method, output: Output, names: tuple[str, ...], calibrated: Calibrated | None) -> Prediction:
    index, probabilities, extras = output.index, output.probabilities, dict(output.extras)
    labels, abstained = None, None
    if calibrated is not None:
        answer = calibrated.answer(probabilities, index)
        index, probabilities, abstained = answer.index, answer.probabilities, answer.abstained
        labels = None if answer.classes is None else tuple(names[c] for c in answer.classes)
        extras["uncalibrated_confidence"] = output.confidence
    return Prediction(
        label=names[index],
        confidence=float(probabilities.max()),
        index=index,
        probabilities=probabilities,
        class_names=names,
        method=method.name,
        flags=output.flags,
        extras=extras,
        labels=labels,
        abstained=abstained,
    )


def refuse_own_network(methods: Sequence[Method]) -> None:
    """``OtptError`` if a method brings a network of its own, which only an evaluation reads."""
    own = next((method for method in methods if method.adapt in OWN_NETWORK), None)
    if own is not None:
        raise OtptError(
            f"Method {own.name!r} predicts with what was trained for it; run it with 'otpt evaluate', in Python with "
            "otpt.evaluation.evaluate."
        )


def candidates(labels: str | Sequence[str] | None, template: str | None) -> Labels | None:
    """The classes of one call: a list, or a text with commas."""
    if labels is None:
        if template is not None:
            raise OtptError("hypothesis_template was given without candidate_labels; give both, or set_classes.")
        return None
    given = [each.strip() for each in labels.split(",")] if isinstance(labels, str) else labels
    return tuple(given), template


def label_indices(labels: Sequence[int | str], names: tuple[str, ...]) -> list[int]:
    """The indices of classes that are given by their names or indices."""
    if isinstance(labels, str):
        raise OtptError(f"The labels are the single text {labels!r}; expected a list, one label per image.")
    return [_label_index(label, names) for label in labels]


def _label_index(label: int | str, names: tuple[str, ...]) -> int:
    if isinstance(label, str):
        if label not in names:
            raise unknown("label", label, names)
        return names.index(label)
    try:
        found = operator.index(label)
    except TypeError:
        raise OtptError(f"The label {label!r} is no index; expected an integer, or a class name.") from None
    if not 0 <= found < len(names):
        raise OtptError(f"The label {found} is not a class; expected 0 to {len(names) - 1}, or a class name.")
    return found
