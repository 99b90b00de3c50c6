"""Main interface: load a model, set the classes once, predict many images.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from html import escape
from inspect import signature
from itertools import chain, repeat
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Literal, cast, overload

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from otpt.arguments import checked
from otpt.arrays import Array, as_tensor, check_directions
from otpt.backbones import Backbone, as_backbone, load_backbone, open_clip_tags
from otpt.calibration import Calibrated, Calibration, fit_calibration, fit_label_calibration
from otpt.decision import CALIBRATED_FIELDS, CalibrationSource, Decision
from otpt.errors import OtptError
from otpt.explain import HeatMap
from otpt.explain import explain as explain_label
from otpt.export import export_onnx
from otpt.features.inputs import count_images, image_inputs, is_one_image
from otpt.features.pipeline import FeaturePipeline, ImageTask, embed
from otpt.files import Json
from otpt.images import LIMITS, ImageSource, UrlLimits
from otpt.labels import label_indices, read_label_sets
from otpt.methods import (
    MULTI_LABEL,
    Method,
    Predictor,
    Protocol,
    Task,
    calibration_facts,
    check_dataset_name,
    check_fit,
    get_method,
    get_methods,
    refuse_no_methods,
    stream,
    text_state,
)
from otpt.prediction import Failure, Prediction, Predictions, make_predictions
from otpt.progress import Progress, as_progress
from otpt.prompts import Prompt, Templates, TextFeatures
from otpt.records import Frozen, one_or_several, sort_keywords
from otpt.rejection import Rejection
from otpt.views import ViewRecipe

_MAX_PREDICTORS = 8
"""Maximum number of cached predictors."""
_PredictorKey = tuple[Task | None, tuple[Method, ...], Protocol, Rejection | None]
"""Task (None for the classifier's own), methods, protocol and rejection of a predictor."""

OneImage = str | bytes | PathLike[str] | Image.Image
"""Images that cannot be mistaken for several."""
ArrayImage = npt.NDArray[np.generic] | Tensor
"""One image (C, H, W) or (H, W, C), or a batch (B, C, H, W)."""
BACKBONE_OPTIONS = tuple(
    name for name in signature(load_backbone).parameters if name not in ("model", "spec", "device")
)
"""Keywords of :func:`load` that are passed to :func:`otpt.backbones.load_backbone`."""
CandidateLabels = str | Sequence[str] | Sequence[Sequence[str]]
Errors = Literal["raise", "return"]
Shown = bool | Progress | None
"""Whether and how progress is shown; see :func:`otpt.progress.as_progress`."""
_PLOTTED = 100
"""Number of images of a call that predictions can show again; further ones are released."""


@dataclass(frozen=True, eq=False)
class _Asked:
    """Key of an image: its name and position, how it is read, and the predictor of its classes."""

    name: str
    position: int
    source: Callable[[], ImageSource]
    predictor: Predictor

    def __str__(self) -> str:
        return self.name


_PREDICTOR: Callable[[_Asked], Predictor] = attrgetter("predictor")


class Classifier:
    """Image classifier: a backbone and three records.

    :class:`~otpt.Task` says what is asked, :class:`~otpt.Protocol` how images become probabilities, and
    :class:`~otpt.Decision` what is done with them. A classifier can be called from several threads.

    Args:
        backbone: model returned by :func:`otpt.backbones.load_backbone`, or an object with the same interface.
        method: method name ("o-tpt"), TOML file ("mine.toml") or :class:`Method`; the default depends on the task.
        urls: limits for downloads from http(s) URLs; None rejects URLs.
        fields: fields of the three records, such as ``views=16``, ``seed=1`` or ``classes=[…]``; or whole records as
            ``task``, ``protocol`` and ``decision``.

    Example:
        >>> import otpt
        >>> clf = otpt.Classifier(otpt.load_backbone("pocket", device="cpu"), "zero-shot", classes=["cat", "dog"])
        >>> clf
        Classifier('pocket', method='zero-shot', classes: 2 ('cat', 'dog'))
    """

    def __init__(
        self,
        backbone: Backbone,
        method: str | Method | None = None,
        *,
        urls: UrlLimits | None = LIMITS,
        **fields: object,
    ) -> None:
        if isinstance(backbone, str):
            raise OtptError(f"Classifier takes a loaded backbone, not {backbone!r}; write otpt.load({backbone!r}).")
        self.backbone = as_backbone(backbone)
        self.urls = urls
        _refuse_several_methods(fields)
        self._initial_task, self._protocol, self._decision = read_records(method, fields)
        if self._protocol.dataset:
            check_dataset_name(self._protocol.dataset)
        self._task = self._initial_task
        self._default_methods: tuple[Method, ...] = ()  # of the task with classes
        self._lock = threading.RLock()
        self._predictors: OrderedDict[_PredictorKey, Predictor] = OrderedDict()
        self._calibrations: dict[str, Calibrated] = {}
        protocol = self.protocol.for_task(self.task)
        check_fit(self.backbone, Task(), protocol, protocol.methods[:1], texts=False, trained=False)
        if self.decision.calibrations:
            self._calibrations = self.decision.by_method(protocol.methods)
        if self.task.classes:
            self._set(self._task)
        self._ready = True

    def __setattr__(self, name: str, value: object) -> None:
        declared = getattr(type(self), name, None)
        settable = declared.fset is not None if isinstance(declared, property) else name in vars(self)
        if "_ready" in vars(self) and not settable:
            raise AttributeError(f"The attribute {name!r} of a Classifier cannot be set; {_way_to_set(name)}.")
        super().__setattr__(name, value)

    @property
    def task(self) -> Task:
        """What is asked: classes and texts."""
        return self._task

    @property
    def protocol(self) -> Protocol:
        """How images become probabilities: methods and views."""
        return self._protocol

    @property
    def decision(self) -> Decision:
        """What is done with probabilities: calibrations, prediction sets, abstention and rejection."""
        return self._decision

    @property
    def method(self) -> Method:
        """Default method; may be set to a name or a :class:`Method`."""
        return self.protocol.for_task(self.task).methods[0]

    @method.setter
    def method(self, value: str | Method) -> None:
        protocol = self.protocol.replace(methods=(value,))
        resolved = protocol.for_task(self.task)
        if self.task.classes:
            self._predictor(self.task, resolved.methods)
        else:
            check_fit(self.backbone, self.task, resolved, resolved.methods, texts=False, trained=False)
        with self._lock:
            self._protocol = protocol
            self._default_methods = resolved.methods[:1]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names."""
        return self._task_with_classes().classes

    @property
    def seed(self) -> int:
        """Random seed of the views."""
        return self.protocol.seed

    @property
    def recipe(self) -> ViewRecipe:
        """View recipe of methods that use several views."""
        return self.protocol.recipe

    @property
    def text_features(self) -> Tensor:
        """Unit text features (C, D) of the classes under the method's initial prompt."""
        group = self._predictor(None, (self.method,)).groups[0]
        state = getattr(group, "state", None)
        if state is None:
            raise OtptError(f"The method {self.method.name!r} has no text features.")
        features: Tensor = state.class_features(state.text_features)
        return features.detach()

    @property
    def calibrations(self) -> Mapping[str, Calibrated]:
        """Active calibrations by method name."""
        return self._calibrations

    def __repr__(self) -> str:
        names = self.task.classes
        shown = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
        classes = f"{len(names)} ({shown})" if names else "not set"
        return f"Classifier({self.backbone.name!r}, method={self.method.name!r}, classes: {classes})"

    def _repr_html_(self) -> str:
        rows = {"model": self.backbone.name, "method": self.method.name, "classes": repr(list(self.task.classes))}
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text[:300])}</td></tr>" for name, text in rows.items())
        return f"<table>{cells}</table>"

    def __getstate__(self) -> dict[str, object]:
        """Exclude the lock and the cached text features, which are recomputed on demand."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_predictors")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.RLock(), _predictors=OrderedDict())

    @checked
    def set_classes(
        self,
        names: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        prompt: str | Prompt | None = None,
        *,
        allow_duplicates: bool | None = None,
        templates: Templates | Sequence[str | Callable[[str], str]] | None = None,
        text_features: Tensor | None = None,
        groups: Mapping[str, object] | str | Path | None = None,
        examples: Mapping[str, Sequence[ImageSource]] | str | Path | None = None,
        progress: Shown = None,
    ) -> Classifier:
        """Set the classes, compute their text features and return the classifier.

        What is not given here is as it was given to :func:`load` or the constructor.

        Args:
            names: class names, or {name: descriptions} to average the text features of the descriptions. A single
                name predicts the probability that it is present. Optional with ``examples`` or ``groups``.
            prompt: context words ("a photo of a") or a :class:`Prompt`.
            allow_duplicates: accept duplicate names; ImageNet has two.
            templates: sentences with ``{}`` for the class name, or functions of it; their text features are averaged.
            text_features: (C, D), precomputed with the same model, of any norm. Descriptions, templates and text
                features have no context, so they require a method that does not tune one (``zero-shot``, ``zero``,
                ``tps`` …).
            groups: {group: class names}, optionally nested, or a CSV file; see :mod:`otpt.groups`.
            examples: {class name: images}, or a folder with one sub-folder per class; changes the default method to
                ``gda``. Classes with examples are known by them, and by their names too if each class has examples;
                the others are known by their names. See :mod:`otpt.methods.few_shot`.
            progress: of encoding the examples, as for :meth:`predict`.
        """
        changes: dict[str, object] = {
            "classes": () if names is None else names,
            "groups": groups,
            "examples": examples,
        }
        texts = {"prompt": prompt, "templates": templates, "text_features": text_features}
        changes |= {name: value for name, value in texts.items() if value is not None}
        if allow_duplicates is not None:
            changes["allow_duplicates"] = allow_duplicates
        self._set(_with_classes(self._initial_task, changes), progress)
        return self

    def replace(self, **fields: object) -> Classifier:
        """Return a classifier with other fields, which shares the model and, where they stay the same, text features.

        Args:
            fields: fields of :class:`~otpt.Protocol` and :class:`~otpt.Decision`, such as ``views=16`` or
                ``coverage=0.9``. Classes and texts are set with :meth:`set_classes`.

        Example:
            >>> import otpt
            >>> clf = otpt.load("pocket", device="cpu", classes=["cat", "dog"])
            >>> clf.replace(views=16).recipe.n_views
            16
        """
        methods = fields.get("method", fields.get("methods"))
        _refuse_several_methods(fields)
        accepted = None if methods is None else get_methods(cast(Sequence[str], one_or_several(methods)))
        clf = self._for_call(fields, accepted)
        return self._copy(self._protocol, self._decision, self._calibrations) if clf is self else clf

    def _for_call(self, fields: Mapping[str, object], methods: tuple[Method, ...] | None) -> Classifier:
        """Return the classifier with other fields of protocol and decision, for one call with ``methods``."""
        if not fields:
            return self
        for name in fields:
            if name in Task.keywords():
                raise OtptError(
                    f"{name} says what is asked, which one call does not change; call set_classes(…), or pass "
                    "candidate_labels=[…]."
                )
        of_protocol, of_decision = sort_keywords(fields, (Protocol, Decision))
        refuse_no_methods(of_protocol)
        protocol, decision = _changed(self._protocol, of_protocol), _changed(self._decision, of_decision)
        assert isinstance(protocol, Protocol)
        assert isinstance(decision, Decision)
        used = methods or protocol.for_task(self._task).methods[:1]
        if not {"calibration", "calibrations"}.isdisjoint(of_decision):
            calibrations = decision.by_method(used)
        else:
            calibrations = {one.calibration.method: one for one in decision.calibrated}
        for name in CALIBRATED_FIELDS:
            missing = [method.name for method in used if method.name not in calibrations]
            if missing and of_decision.get(name) is not None:
                raise OtptError(
                    f"{name} is set, but the method {missing[0]!r} has no calibration; call calibrate(images, labels) "
                    f"with it, or pass a method that has one: {', '.join(calibrations) or 'none has'}."
                )
        decision.check_task(self._task)
        return self._copy(protocol, decision, calibrations)

    def _copy(self, protocol: Protocol, decision: Decision, calibrations: Mapping[str, Calibrated]) -> Classifier:
        """Return a copy with other records, which shares the model and the cached predictors."""
        clf = object.__new__(type(self))
        vars(clf).update(vars(self), _protocol=protocol, _decision=decision, _calibrations=dict(calibrations))
        if self._task.classes:
            vars(clf)["_default_methods"] = protocol.for_task(self._task).methods[:1]
        return clf

    def to(self, device: str | torch.device) -> Classifier:
        """Move the model to a device and return the classifier."""
        with self._lock:
            self.backbone = self.backbone.to(device)
            self._predictors = OrderedDict()
        return self

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: OneImage,
        candidate_labels: CandidateLabels | None = ...,
        *,
        hypothesis_template: str | None = ...,
        method: str | Method | None = ...,
        errors: Literal["raise"] = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: OneImage,
        candidate_labels: CandidateLabels | None = ...,
        *,
        hypothesis_template: str | None = ...,
        method: str | Method | None = ...,
        errors: Literal["return"],
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction | Failure: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: ArrayImage,
        candidate_labels: CandidateLabels | None = ...,
        *,
        hypothesis_template: str | None = ...,
        method: str | Method | None = ...,
        errors: Errors = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction | Failure | Predictions: ...

    @overload
    def __call__(
        self,
        images: Iterable[object],
        candidate_labels: CandidateLabels | None = ...,
        *,
        hypothesis_template: str | None = ...,
        method: str | Method | None = ...,
        errors: Literal["raise"] = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Predictions[Prediction]: ...

    @overload
    def __call__(
        self,
        images: Iterable[object],
        candidate_labels: CandidateLabels | None = ...,
        *,
        hypothesis_template: str | None = ...,
        method: str | Method | None = ...,
        errors: Errors,
        progress: Shown = ...,
        **fields: object,
    ) -> Predictions: ...

    @checked
    def __call__(
        self,
        images: object,
        candidate_labels: CandidateLabels | None = None,
        *,
        hypothesis_template: str | None = None,
        method: str | Method | None = None,
        errors: Errors = "raise",
        progress: Shown = None,
        **fields: object,
    ) -> Prediction | Failure | Predictions | Predictions[Prediction]:
        """Predict with the arguments of Hugging Face's pipeline; see :meth:`predict`.

        ``candidate_labels``, a list or a comma-separated string, replaces the classes of :meth:`set_classes` for this
        call; ``hypothesis_template`` is their template ("a photo of a {}."). Their text features are cached. A list of
        lists gives the classes of each image; methods that tune no context encode each distinct text once. A
        :class:`Prediction` is a sequence like the pipeline's result, best label first.
        """
        predict: Callable[..., Prediction | Failure | Predictions] = self.predict  # it validates the fields
        return predict(
            images,
            method=method,
            errors=errors,
            candidate_labels=candidate_labels,
            hypothesis_template=hypothesis_template,
            progress=progress,
            **fields,
        )

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: OneImage,
        *,
        method: str | Method | None = ...,
        image_id: str | None = ...,
        workers: int | None = ...,
        errors: Literal["raise"] = ...,
        candidate_labels: CandidateLabels | None = ...,
        hypothesis_template: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction: ...

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: OneImage,
        *,
        method: str | Method | None = ...,
        image_id: str | None = ...,
        workers: int | None = ...,
        errors: Literal["return"],
        candidate_labels: CandidateLabels | None = ...,
        hypothesis_template: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction | Failure: ...

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: ArrayImage,
        *,
        method: str | Method | None = ...,
        image_id: str | None = ...,
        workers: int | None = ...,
        errors: Errors = ...,
        candidate_labels: CandidateLabels | None = ...,
        hypothesis_template: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Prediction | Failure | Predictions: ...

    @overload
    def predict(
        self,
        images: Iterable[object],
        *,
        method: str | Method | None = ...,
        image_id: str | None = ...,
        workers: int | None = ...,
        errors: Literal["raise"] = ...,
        candidate_labels: CandidateLabels | None = ...,
        hypothesis_template: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Predictions[Prediction]: ...

    @overload
    def predict(
        self,
        images: Iterable[object],
        *,
        method: str | Method | None = ...,
        image_id: str | None = ...,
        workers: int | None = ...,
        errors: Errors,
        candidate_labels: CandidateLabels | None = ...,
        hypothesis_template: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Predictions: ...

    @checked
    def predict(
        self,
        images: object,
        *,
        method: str | Method | None = None,
        image_id: str | None = None,
        workers: int | None = None,
        errors: Errors = "raise",
        candidate_labels: CandidateLabels | None = None,
        hypothesis_template: str | None = None,
        progress: Shown = None,
        **fields: object,
    ) -> Prediction | Failure | Predictions | Predictions[Prediction]:
        """Return the :class:`Prediction` of one image, or :class:`Predictions` of several.

        Args:
            images: image accepted by :func:`otpt.images.open_image`, or an iterable of images.
            method: method of this call; the classifier's by default.
            image_id: key of the random views of a single image; a digest of its content by default.
            workers: number of threads that decode and augment images in advance; one per core by default.
            errors: "raise" an error at the first unusable image, or "return" a :class:`Failure` instead.
            candidate_labels, hypothesis_template: classes of this call; see :meth:`__call__`.
            progress: True for a bar, or a line per minute in a log; False for nothing; by default a bar on a terminal
                or in a notebook, for work of more than two seconds.
            fields: fields of :class:`~otpt.Protocol` and :class:`~otpt.Decision` for this call, such as ``views=16``,
                ``coverage=0.9`` or ``within="insects"``.

        Returns:
            The prediction of one image; for several, a list with ``to_pandas()`` and ``plot()``.
        """
        if errors not in ("raise", "return"):
            raise OtptError(f"errors is {errors!r}; expected 'raise' or 'return'.")
        one = is_one_image(images)
        methods = None if method is None else (get_method(method),)
        clf = self._for_call(fields, methods)
        predictors: Iterable[Predictor]
        if candidate_labels is None and hypothesis_template is None:
            predictors = repeat(clf._predictor(None, methods))
        else:
            predictors = clf._predictors_for(candidate_labels, hypothesis_template, methods)
        image_ids = None if image_id is None else [image_id]
        results = Predictions()
        for asked, answer in clf._answers(images, predictors, image_ids, workers, one=one, progress=progress):
            if not isinstance(answer, OtptError):
                results.extend(answer.values())
            elif errors == "return":
                results.append(Failure(asked.name, asked.position, answer))
            else:
                raise answer if one else OtptError(f"Cannot use image {asked.position + 1} of the list: {answer}")
        return next(iter(results)) if one else results

    @overload
    def compare(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: OneImage,
        methods: Sequence[str | Method],
        *,
        image_id: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> dict[str, Prediction]: ...

    @overload
    def compare(  # type: ignore[overload-overlap]  # a str is iterable
        self,
        images: ArrayImage,
        methods: Sequence[str | Method],
        *,
        image_id: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> dict[str, Prediction] | list[dict[str, Prediction]]: ...

    @overload
    def compare(
        self,
        images: Iterable[object],
        methods: Sequence[str | Method],
        *,
        image_id: str | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> list[dict[str, Prediction]]: ...

    @checked
    def compare(
        self,
        images: object,
        methods: Sequence[str | Method],
        *,
        image_id: str | None = None,
        progress: Shown = None,
        **fields: object,
    ) -> dict[str, Prediction] | list[dict[str, Prediction]]:
        """Return {method name: prediction} of one image, or a list of such dicts; views are encoded once.

        Args:
            images: as for :meth:`predict`.
            methods: methods of this call.
            image_id: key of the random views of a single image; a digest of its content by default.
            progress: as for :meth:`predict`.
            fields: fields of :class:`~otpt.Protocol` and :class:`~otpt.Decision` for this call.
        """
        one = is_one_image(images)
        image_ids = None if image_id is None else [image_id]
        chosen = get_methods(methods)
        clf = self._for_call(fields, chosen)
        predictor = clf._predictor(None, chosen)
        results = []
        for _, answer in clf._answers(images, repeat(predictor), image_ids, one=one, progress=progress):
            if isinstance(answer, OtptError):
                raise answer
            results.append(answer)
        return results[0] if one else results

    @overload
    def stream(
        self,
        images: Iterable[object],
        methods: None = ...,
        *,
        image_ids: Iterable[str] | None = ...,
        workers: int | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Iterator[Prediction | Failure]: ...

    @overload
    def stream(
        self,
        images: Iterable[object],
        methods: Sequence[str | Method],
        *,
        image_ids: Iterable[str] | None = ...,
        workers: int | None = ...,
        progress: Shown = ...,
        **fields: object,
    ) -> Iterator[dict[str, Prediction] | Failure]: ...

    @checked
    def stream(
        self,
        images: Iterable[object],
        methods: Sequence[str | Method] | None = None,
        *,
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
        progress: Shown = False,
        **fields: object,
    ) -> Iterator[Prediction | Failure] | Iterator[dict[str, Prediction] | Failure]:
        """Lazily yield the predictions of images in order; an unusable image yields a :class:`Failure`.

        Args:
            images: iterable of paths, PIL images, arrays or batches; data loader; torch or Hugging Face data set.
            methods: yield {method name: prediction} per image; by default, the prediction of the classifier's method.
            image_ids: keys of the random views; digests of the images' content by default.
            workers: number of threads that decode and augment images in advance; one per core by default.
            progress: as for :meth:`predict`, but nothing by default.
            fields: fields of :class:`~otpt.Protocol` and :class:`~otpt.Decision` for this call.
        """
        chosen = None if methods is None else get_methods(methods)
        clf = self._for_call(fields, chosen)
        predictor = clf._predictor(None, chosen or (clf.method,))
        answers = clf._answers(images, repeat(predictor), image_ids, workers, progress=progress)
        return _streamed(answers, by_method=methods is not None)

    @checked
    def encode_views(self, image: ImageSource, *, image_id: str | None = None) -> Tensor:
        """Return the unit features (V, D) of an image's views, the clean view first."""
        recipe = self.recipe
        task = ImageTask(
            "image", lambda: image, [recipe], self.seed, image_id, urls=self.urls, upright=self.protocol.upright
        )
        ((_, encoded),) = FeaturePipeline(self.backbone, threads=0)([task])
        if isinstance(encoded, OtptError):
            raise encoded
        return encoded.features[recipe.kind]

    @checked
    def embed(
        self, images: object, *, views: int | ViewRecipe = 1, workers: int | None = None, progress: Shown = None
    ) -> Tensor:
        """Return the unit features of one image (D,) or of several (N, D), averaged over ``views`` views."""
        one = is_one_image(images)
        inputs = [images] if one else cast(Iterable[object], images)
        embedded = embed(
            self.backbone,
            inputs,
            views,
            seed=self.seed,
            workers=0 if one else workers,
            urls=self.urls,
            upright=self.protocol.upright,
        )
        features = []
        for feature in as_progress(progress).track(embedded, 1 if one else count_images(inputs)):
            if isinstance(feature, OtptError):
                raise feature
            features.append(torch.from_numpy(feature))
        if one:
            return features[0]
        return torch.stack(features) if features else torch.empty(0, self.backbone.embed_dim)

    @checked
    def classify_features(
        self, views: Array, methods: Sequence[str | Method], **fields: object
    ) -> list[dict[str, Prediction]]:
        """Return {method name: prediction} for each image of view features (B, V, D), clean view first.

        ``fields`` of :class:`~otpt.Protocol` and :class:`~otpt.Decision` hold for this call.
        """
        views = as_tensor(views, "features")
        if views.ndim != 3 or views.shape[1] == 0 or views.shape[2] != self.backbone.embed_dim:
            raise OtptError(
                f"The features have shape {tuple(views.shape)}; expected (B, V, {self.backbone.embed_dim}), clean view "
                "first; for one image pass features[None]."
            )
        if not len(views):
            return []
        views = views.to(self.backbone.dtype)
        check_directions(views, "The batch of features")
        chosen = get_methods(methods)
        clf = self._for_call(fields, chosen)
        predictor = clf._predictor(None, chosen)
        return [
            make_predictions(predictor.methods, outputs, predictor.task, clf._calibrations, decision=clf._decision)
            for outputs in predictor.of_features(views)
        ]

    @checked
    def explain(self, image: ImageSource, label: str | None = None, *, crops: int = 64, seed: int = 0) -> HeatMap:
        """Return the heat map of a label, by default the predicted one; see :func:`otpt.explain.explain`."""
        return explain_label(self, image, label, crops=crops, seed=seed)

    @checked
    def export(self, path: str | Path) -> None:
        """Write the classifier to an ONNX file; see :func:`otpt.export.export_onnx`."""
        if self._decision.within is not None:
            raise OtptError(
                f"within is {self._decision.within!r}, but a file has the probabilities of all classes; write "
                "clf.replace(within=None).export(…)."
            )
        export_onnx(self, path)

    @checked
    def calibrate(
        self,
        images: Iterable[ImageSource],
        labels: Sequence[object],
        *,
        maps: Sequence[str] | None = None,
        progress: Shown = None,
    ) -> Calibration:
        """Fit a calibration on labelled images and apply it to all further predictions.

        Args:
            images: calibration images, disjoint from the test images.
            labels: class names or indices; with ``multi_label`` a list of class names per image; for a single class
                also a bool per image.
            maps: candidate calibration maps; see :func:`otpt.calibration.maps.choose_map`.
            progress: as for :meth:`predict`.

        Returns:
            The :class:`~otpt.calibration.Calibration`; save it with ``.write("cal.json")``.
        """
        task, method = self._task_with_classes(), self.method
        independent = method.adapt == MULTI_LABEL
        present = read_label_sets(labels, task.classes) if independent else label_indices(labels, task.classes)
        if isinstance(images, Sized):  # fail early
            _check_one_label_each(len(images), len(present))
        rows = []
        predictor = self._predictor(None, (method,))
        uncalibrated = self._copy(self._protocol, self._decision.replace(within=None), {})
        for _, answer in uncalibrated._answers(images, repeat(predictor), progress=progress):
            if isinstance(answer, OtptError):
                raise answer
            rows.append(answer[method.name].probabilities)
        _check_one_label_each(len(rows), len(present))
        probabilities = np.array(rows).reshape(len(rows), len(task.classes))
        facts, origin = self._facts(task, method), {"dataset": "", "seed": self.seed}
        if independent:
            calibration = fit_label_calibration(probabilities, present, facts, origin=origin)
        else:
            calibration = fit_calibration(probabilities, present, facts, origin=origin, maps=maps)
        self.use_calibrations([calibration])
        return calibration

    @checked
    def use_calibrations(
        self, calibrations: Sequence[CalibrationSource], methods: Sequence[str | Method] | None = None
    ) -> Classifier:
        """Apply calibrations to all further predictions and return the classifier; an empty list removes them.

        Args:
            calibrations: files, :class:`Calibration` or :class:`Calibrated` objects; at most one per method.
            methods: methods accepted in the calibrations; the classifier's method by default.
        """
        if not isinstance(calibrations, (list, tuple)):
            raise OtptError(f"calibrations is {calibrations!r:.80}; expected a list of files or calibrations.")
        accepted = get_methods([self.method] if methods is None or len(methods) == 0 else methods)
        decision = self.decision.with_calibrations(calibrations)
        by_method = decision.by_method(accepted)
        if self.task.classes:
            for method in accepted:
                if method.name in by_method:
                    by_method[method.name].calibration.check(self._facts(self.task, method))
        self._decision, self._calibrations = decision, by_method
        return self

    def _answers(
        self,
        images: object,
        predictors: Iterable[Predictor],
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
        *,
        one: bool = False,
        progress: Shown = False,
    ) -> Iterator[tuple[_Asked, dict[str, Prediction] | OtptError]]:
        """Return (image, predictions by method name or the error) in order, with progress.

        ``predictors`` has a predictor for each image, or repeats one.
        """
        answers = self._unshown(images, predictors, image_ids, workers, one=one)
        total = 1 if one else count_images(images)
        shown = as_progress(False if one and progress is None else progress)
        return shown.track(answers, total, lambda answer: isinstance(answer[1], OtptError))

    def _unshown(
        self,
        images: object,
        predictors: Iterable[Predictor],
        image_ids: Iterable[str] | None,
        workers: int | None,
        *,
        one: bool,
    ) -> Iterator[tuple[_Asked, dict[str, Prediction] | OtptError]]:
        """Yield (image, predictions by method name or the error) in order."""
        inputs = image_inputs([images] if one else cast(Iterable[object], images), image_ids)
        if isinstance(predictors, list):
            listed = list(inputs)
            if len(listed) != len(predictors):
                raise OtptError(
                    f"candidate_labels has {len(predictors)} lists for {len(listed)} images; expected one per image."
                )
            inputs = iter(listed)

        keys = (
            (_Asked(image.shown, position, image.source, predictor), image.image_id)
            for position, (predictor, image) in enumerate(zip(predictors, inputs, strict=False))
        )
        tasks = (
            asked.predictor.image_task(asked, asked.source, image_id=image_id, urls=self.urls)
            for asked, image_id in keys
        )
        # fixed chunks make an image's features independent of the rest of the batch; a single image does not need them
        pipeline = FeaturePipeline(self.backbone, threads=0 if one else workers, fixed_chunks=not one)
        batches = stream(tasks, pipeline, _PREDICTOR)
        for image, outputs in chain.from_iterable(batches):
            asked = image.task.key
            if isinstance(outputs, OtptError):
                yield asked, outputs
            elif isinstance(outputs, Exception):
                raise outputs
            else:
                predictor = asked.predictor
                yield (
                    asked,
                    make_predictions(
                        predictor.methods,
                        outputs,
                        predictor.task,
                        self._calibrations,
                        image=asked.name,
                        source=asked.source if asked.position < _PLOTTED else None,
                        decision=self._decision,
                    ),
                )

    def _task_with_classes(self) -> Task:
        """Return the task, or raise if its classes are not set."""
        if not self._task.classes:
            raise OtptError("No classes are set; call set_classes([...]) before predicting.")
        return self._task

    def _candidate_task(self, labels: Sequence[str], template: str | None = None) -> Task:
        """Return the task with the classes replaced by candidate labels."""
        changes: dict[str, object] = {"classes": labels, "groups": None, "examples": None}
        if template is not None:
            changes["prompt"] = template
        return _with_classes(self._initial_task, changes)

    def _predictor(self, task: Task | None, methods: tuple[Method, ...] | None = None) -> Predictor:
        """Return a predictor from an LRU cache.

        Args:
            task: None for the classifier's own task.
            methods: methods; by default the first of the protocol. A stream method has one state, however it is named.
        """
        if task is None and methods is None and self._task.classes:
            methods = self._default_methods
        else:
            methods = self._methods_for(task or self._task_with_classes(), methods)
        key = task, methods, self._protocol, self._decision.rejection
        with self._lock:
            predictor = self._predictors.get(key)
            if predictor is None:
                predictor = self._new_predictor(task or self._task_with_classes(), methods)
                while len(self._predictors) >= _MAX_PREDICTORS:
                    self._predictors.popitem(last=False)
                self._predictors[key] = predictor
            self._predictors.move_to_end(key)
        if self._calibrations:
            self._check_calibrations(predictor.task, predictor.methods)
        return predictor

    def _new_predictor(self, task: Task, methods: tuple[Method, ...]) -> Predictor:
        protocol = self._protocol_for(task, methods)
        self.decision.check_task(task)
        # texts=False: the encoder tokenises them and checks their lengths
        check_fit(self.backbone, task, protocol, protocol.methods, texts=False, trained=False)
        return Predictor(self.backbone, [task], protocol, self.decision.rejection)

    def _methods_for(self, task: Task, methods: tuple[Method, ...] | None) -> tuple[Method, ...]:
        """Return the given methods, or the first one of the protocol or task."""
        if methods is None:
            return self.protocol.for_task(task).methods[:1]
        if not methods:
            raise OtptError("No methods were given; expected at least one.")
        return methods

    def _protocol_for(self, task: Task, methods: tuple[Method, ...] | None) -> Protocol:
        """Return the protocol with the given methods, or with the first one of the protocol or task."""
        return self.protocol.replace(methods=self._methods_for(task, methods)).for_task(task)

    def _predictors_for(
        self, labels: CandidateLabels | None, template: str | None, methods: tuple[Method, ...] | None
    ) -> Iterable[Predictor]:
        """Return the predictor of all images, or a list with one for each image."""
        if labels is None:
            raise OtptError("hypothesis_template needs candidate_labels; pass both, or call set_classes.")
        if isinstance(labels, str) or all(isinstance(label, str) for label in labels):
            names = candidates(cast("str | Sequence[str]", labels))
            return repeat(self._predictor(self._candidate_task(names, template), methods))
        lists = [candidates(names) for names in labels]
        return self._predictors_of(lists, template, methods)

    def _predictors_of(
        self, lists: Sequence[tuple[str, ...]], template: str | None, methods: tuple[Method, ...] | None
    ) -> list[Predictor]:
        """Return one predictor per list of candidate labels; texts in several lists are encoded once."""
        tasks = {names: self._candidate_task(names, template) for names in dict.fromkeys(lists)}
        all_names = list(dict.fromkeys(name for names in tasks for name in names))
        features: Tensor | None = None
        predictors: dict[tuple[str, ...], Predictor] = {}
        for names, task in tasks.items():
            protocol = self._protocol_for(task, methods)
            method = protocol.methods[0]
            if len(names) == 1 or method.needs_context or method.init != "words" or not isinstance(task.texts, Prompt):
                predictors[names] = self._predictor(task, methods)
                continue
            self._check_calibrations(task, protocol.methods)
            if features is None:
                together = task.replace(classes=all_names, allow_duplicates=True)
                budget = self.protocol.memory_budget
                state = text_state(self.backbone, together, task.texts, memory_budget=budget, tunable=False)
                features = state.text_features
            rows = features[[all_names.index(name) for name in names]]
            described = task.replace(texts=TextFeatures(rows))
            predictors[names] = Predictor(self.backbone, [described], protocol, self.decision.rejection)
        return [predictors[names] for names in lists]

    def _check_calibrations(self, task: Task, methods: Sequence[Method]) -> None:
        """Raise if a calibration was fitted with other classes or another prompt."""
        for method in methods:
            if method.name in self._calibrations:
                self._calibrations[method.name].calibration.check(self._facts(task, method))

    def _facts(self, task: Task, method: Method) -> dict[str, Json]:
        """Return the facts that determine whether a calibration applies to a method."""
        return calibration_facts(self.backbone, task, self.protocol, method)

    def _set(self, task: Task, progress: Shown = None) -> None:
        """Apply a new task and compute its text features; on an error, keep the previous task."""
        if not task.classes:
            raise OtptError("The list of class names is empty; expected at least two names.")
        if task.examples is not None:
            upright = self.protocol.upright
            examples = task.examples.encode(self.backbone, self.urls, as_progress(progress), upright=upright)
            task = task.replace(examples=examples)
        with self._lock:
            predictor = self._new_predictor(task, self._methods_for(task, None))
            if self._calibrations:
                self._check_calibrations(task, predictor.methods)
            self._default_methods = predictor.methods
            key = None, predictor.methods, self._protocol, self._decision.rejection
            self._predictors = OrderedDict({key: predictor})
            self._task = task
        if len(task.classes) == 1 and not self._calibrations:
            warnings.warn(
                f"The probability that {task.classes[0]!r} is present is a rough estimate, based on a comparison with "
                "common nouns; calibrate it on positive and negative images with clf.calibrate or 'otpt calibrate'.",
                stacklevel=3,
            )


def read_records(method: str | Method | None, fields: Mapping[str, object]) -> tuple[Task, Protocol, Decision]:
    """Return the three records from keywords; ``task``, ``protocol`` and ``decision`` may be given whole."""
    values = dict(fields)
    if method is not None:
        values["method"] = method
    refuse_no_methods(values)
    records: dict[str, type[Frozen]] = {"task": Task, "protocol": Protocol, "decision": Decision}
    given = {name: values.pop(name) for name in records if name in values}
    for name, record in given.items():
        if not isinstance(record, records[name]):
            raise OtptError(f"{name} is {record!r:.80}; expected a {records[name].__name__}.")
    made = []
    for (name, record), keywords in zip(records.items(), sort_keywords(values, records.values()), strict=True):
        if name in given and keywords:
            made.append(cast(Frozen, given[name]).replace(**keywords))
        else:
            made.append(cast(Frozen, given[name]) if name in given else record(**keywords))
    task, protocol, decision = made
    assert isinstance(task, Task)
    assert isinstance(protocol, Protocol)
    assert isinstance(decision, Decision)
    protocol.for_task(task)
    if task.independent_labels:
        protocol.check_independent_labels()
    decision.check_task(task)
    return task, protocol, decision


def _streamed(
    answers: Iterable[tuple[_Asked, dict[str, Prediction] | OtptError]], *, by_method: bool
) -> Iterator[Prediction | Failure] | Iterator[dict[str, Prediction] | Failure]:
    """Yield {method name: prediction}, or the only prediction, of each image; or its failure."""
    for asked, answer in answers:
        if isinstance(answer, OtptError):
            yield Failure(asked.name, asked.position, answer)
        elif by_method:
            yield answer
        else:
            yield next(iter(answer.values()))


def _way_to_set(name: str) -> str:
    """Return how to change what an attribute of a classifier would say."""
    if name in ("calibration", "calibrations"):
        return "call use_calibrations([…]) or calibrate(images, labels)"
    if name in Task.keywords() or name == "class_names":
        return "call set_classes(…), or load the model again with otpt.load"
    if name in (*Protocol.keywords(), *Decision.keywords()):
        return f"write predict(images, {name}=…) for one call, or clf = clf.replace({name}=…)"
    return "give settings to otpt.load or replace, classes to set_classes, and calibrations to use_calibrations"


def _changed(record: Frozen, changes: Mapping[str, object]) -> Frozen:
    """Return a record with some fields changed, under any of their spellings."""
    fields: dict[str, object] = {}
    for name, value in changes.items():
        field = record.spellings.get(name, name)
        if field in fields:
            raise OtptError(f"Both {name} and {field} are set; pass only one of them.")
        fields[field] = value
    return record.replace(**fields) if fields else record


def _refuse_several_methods(fields: Mapping[str, object]) -> None:
    """Raise an :class:`OtptError` for several methods of one classifier."""
    methods = fields.get("methods")
    if isinstance(methods, (list, tuple)) and len(methods) > 1:
        raise OtptError(
            f"A classifier has one method, but {len(methods)} were given; give one, and call "
            "clf.compare(images, methods) or clf.stream(images, methods) for several."
        )


def _with_classes(task: Task, changes: Mapping[str, object]) -> Task:
    """Return a task with other classes; texts that belong to the old classes are dropped."""
    values = {name: getattr(task, name) for name in task.model_fields_set}
    of_classes = not isinstance(task.texts, (Prompt, Templates))
    described = isinstance(changes.get("classes"), Mapping)
    if of_classes or described or not {"prompt", "templates", "text_features"}.isdisjoint(changes):
        values.pop("texts", None)
    return Task(**{**values, **changes})


def load(
    model: object,
    method: str | Method | None = None,
    *,
    device: str | torch.device = "auto",
    urls: UrlLimits | None = LIMITS,
    **fields: object,
) -> Classifier:
    """Load a model and return a classifier.

    Args:
        model: open_clip architecture and tag ("ViT-B-16/openai"), ``hf-hub:…``, ``local-dir:…``, a file, or a model in
            memory, which is copied: an open_clip model with its ``tokenizer`` and ``preprocess``, or a Hugging Face
            ``CLIPModel`` or ``SiglipModel`` with its processor as ``preprocess``.
        method: method name ("o-tpt"), TOML file or :class:`Method`; the default depends on the task.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        urls: limits for downloads from http(s) URLs; None rejects URLs.
        fields: fields of :class:`~otpt.Task`, :class:`~otpt.Protocol` and :class:`~otpt.Decision`, such as
            ``views=16`` or ``classes=[…]``; and options of :func:`otpt.backbones.load_backbone`: ``precision``,
            ``compile``, ``architecture``, ``quick_gelu``, ``tokenizer`` and ``preprocess``.

    Example:
        >>> import numpy as np, otpt
        >>> clf = otpt.load("pocket", method="o-tpt", views=8, device="cpu").set_classes(["cat", "dog"])
        >>> clf.predict(np.zeros((64, 64, 3), np.uint8)).method
        'o-tpt'
    """
    options = {name: fields.pop(name) for name in BACKBONE_OPTIONS if name in fields}
    try:
        task, protocol, decision = read_records(method, fields)  # fail before loading a large model
    except OtptError:
        if isinstance(model, str) and method in open_clip_tags().get(model, ()):
            raise OtptError(
                f"{method!r} is a tag of weights, not a method; write otpt.load('{model}/{method}')."
            ) from None
        raise
    load_model: Callable[..., Backbone] = load_backbone
    backbone = load_model(model, device=device, **options)
    return Classifier(backbone, urls=urls, task=task, protocol=protocol, decision=decision)


def candidates(labels: str | Sequence[str]) -> tuple[str, ...]:
    """Parse candidate labels, given as a list or a comma-separated string."""
    names = labels
    if isinstance(labels, str):
        names = [label.strip() for label in labels.split(",")]
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise OtptError(
            f"candidate_labels is {labels!r:.80}; expected a list of class names, or one such list per image."
        )
    names = tuple(names)
    if not names:
        raise OtptError("candidate_labels is empty; expected at least two class names.")
    return names


def _check_one_label_each(images: int, labels: int) -> None:
    if images != labels:
        raise OtptError(f"There are {images} images but {labels} labels; expected one label per image.")
