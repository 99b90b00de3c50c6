"""Main interface: load a model, set the classes once, predict many images.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from html import escape
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from otpt.backbones import Backbone, as_backbone, load_backbone, open_clip_tags
from otpt.calibration import Calibrated, Calibration, fit_calibration, fit_label_calibration
from otpt.data.own import read_label_sets
from otpt.errors import OtptError, unknown
from otpt.features.inputs import ImageInput, image_inputs, is_one_image
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask, embed
from otpt.images import LIMITS, ImageSource, UrlLimits
from otpt.methods import (
    Method,
    Predictor,
    calibration_facts,
    check_fit,
    columns,
    get_method,
    get_methods,
    stream,
    text_state,
)
from otpt.prediction import Failure, Prediction, predictions
from otpt.prompts import DEFAULT_PROMPTS, Prompt, Templates, TextFeatures
from otpt.settings import DEFAULT_METHOD, MULTI_LABEL, Settings
from otpt.views import ViewRecipe

if TYPE_CHECKING:
    from otpt.tasks.explain import HeatMap

_MAX_PREDICTORS = 8
"""Maximum number of cached predictors, one per class list and tuple of methods."""

Labels = tuple[tuple[str, ...], str | None]
"""Candidate labels of a call, and the template or None."""

CalibrationSource = str | Path | Calibration | Calibrated


class Classifier:
    """Image classifier: a backbone, a method and a list of classes.

    Args:
        backbone: model returned by :func:`otpt.backbones.load_backbone`.
        method: method name ("o-tpt"), TOML file ("mine.toml"), :class:`Method` or :class:`otpt.settings.Settings`.
        urls: limits for downloads from http(s) URLs; None rejects URLs.
        fields: fields of :class:`otpt.settings.Settings`, such as ``views=16``, ``seed=1`` or ``classes=[…]``.

    Example:
        >>> import otpt
        >>> clf = otpt.Classifier(otpt.load_backbone("pocket", device="cpu"), "zero-shot", classes=["cat", "dog"])
        >>> clf
        Classifier('pocket', method='zero-shot', classes: 2 ('cat', 'dog'))
    """

    def __init__(
        self,
        backbone: Backbone,
        method: str | Method | Settings = DEFAULT_METHOD,
        *,
        urls: UrlLimits | None = LIMITS,
        **fields: Any,
    ) -> None:
        if isinstance(backbone, str):
            raise OtptError(f"Classifier takes a loaded backbone, not {backbone!r}; write otpt.load({backbone!r}).")
        if isinstance(method, Settings):
            settings = method.replace(**fields) if fields else method
        else:
            settings = Settings(methods=(method,), **fields)
        backbone = as_backbone(backbone)
        self.backbone, self.urls = backbone, urls
        if settings.examples is not None:
            settings = self._encode_examples(settings)
        self.settings = settings
        self._predictors: OrderedDict[tuple[Labels | None, tuple[Method, ...]], Predictor] = OrderedDict()
        self._calibrations: dict[str, Calibrated] = {}
        if settings.contexts:
            _ = settings.learned  # read the files now, to fail early
        if settings.calibrations:
            self.use_calibrations(settings.calibrated, settings.methods)
        if settings.classes:
            self._set(settings)
        else:
            check_fit(backbone, settings, settings.methods[:1], texts=False, trained=False)

    @property
    def method(self) -> Method:
        """Default method."""
        return self.settings.methods[0]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names."""
        return self._settings_for(None).classes

    @property
    def seed(self) -> int:
        """Random seed of the views."""
        return self.settings.seed

    @property
    def recipe(self) -> ViewRecipe:
        """View recipe of methods that use several views."""
        return self.settings.recipe

    @property
    def text_features(self) -> Tensor:
        """Unit text features (C, D) of the classes under the method's initial prompt."""
        group: Any = self._predictor((self.method,)).groups[0]
        features: Tensor = group.state.class_features(group.state.text_features)
        return features.detach()

    @property
    def calibrations(self) -> Mapping[str, Calibrated]:
        """Active calibrations by method name."""
        return self._calibrations

    def __repr__(self) -> str:
        names = self.settings.classes
        shown = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
        classes = f"{len(names)} ({shown})" if names else "not set"
        return f"Classifier({self.backbone.name!r}, method={self.method.name!r}, classes: {classes})"

    def _repr_html_(self) -> str:
        rows = {"model": self.backbone.name, "method": self.method.name, "classes": repr(list(self.settings.classes))}
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text[:300])}</td></tr>" for name, text in rows.items())
        return f"<table>{cells}</table>"

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the cached text features, which are recomputed on demand."""
        return {**vars(self), "_predictors": OrderedDict()}

    def set_classes(
        self,
        names: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        prompt: str | Prompt | None = None,
        *,
        allow_duplicates: bool = False,
        attributes: Mapping[str, Sequence[str]] | str | Path | None = None,
        templates: Templates | Sequence[str | Callable[[str], str]] | None = None,
        text_features: Tensor | None = None,
        groups: Mapping[str, Any] | str | Path | None = None,
        examples: Mapping[str, Sequence[ImageSource]] | str | Path | None = None,
    ) -> Classifier:
        """Set the classes, compute their text features and return the classifier.

        Args:
            names: class names, or {name: descriptions} to average the text features of the descriptions. A single
                name predicts the probability that it is present. Optional with ``examples``.
            prompt: context words ("a photo of a") or a :class:`Prompt`.
            allow_duplicates: accept duplicate names; ImageNet has two.
            attributes: {name: attributes} with equally many attributes per class, or a file, for methods that use
                attributes (``tca``).
            templates: sentences with ``{}`` for the class name, or functions of it; their text features are averaged.
            text_features: (C, D), precomputed with the same model, of any norm. Descriptions, templates and text
                features have no context, so they require a method that does not tune one (``zero-shot``, ``zero``,
                ``tps`` …).
            groups: {group: class names}, optionally nested, or a CSV file; see :mod:`otpt.tasks.groups`.
            examples: {class name: images}, or a folder with one sub-folder per class, in place of the texts or in
                addition to them; changes the default method to ``gda``. See :mod:`otpt.tasks.examples`.
        """
        given = {"prompt": prompt, "templates": templates, "text_features": text_features}
        several = [name for name, value in given.items() if value is not None]
        several += ["descriptions"] if isinstance(names, Mapping) else []
        if len(several) > 1:
            raise OtptError(f"{' and '.join(several)} cannot be combined; pass only one of them.")
        changes: dict[str, Any] = {"texts": None if text_features is None else TextFeatures(text_features)}
        if templates is not None:
            changes["texts"] = changes["templates"] = templates
        self._set(
            self.settings.replace(
                methods=self.settings.asked_methods,
                classes=() if names is None else names,
                examples=examples,
                prompts=None if prompt is None else (prompt,),
                allow_duplicates=allow_duplicates,
                attributes=attributes,
                groups=groups,
                **changes,
            )
        )
        return self

    def to(self, device: str | torch.device) -> Classifier:
        """Move the model to a device and return the classifier."""
        self.backbone = self.backbone.to(device)
        self._predictors.clear()
        return self

    def __call__(
        self, images: Any, candidate_labels: str | Sequence[str] | Sequence[Sequence[str]] | None = None, **more: Any
    ) -> Any:
        """Predict with the arguments of Hugging Face's pipeline; see :meth:`predict`.

        ``candidate_labels``, a list or a comma-separated string, replaces the classes of :meth:`set_classes` for this
        call; ``hypothesis_template`` is their template ("a photo of a {}."). Their text features are cached. A list of
        lists gives the classes of each image; methods that tune no context encode each distinct text once. A
        :class:`Prediction` is a sequence like the pipeline's result, best label first.
        """
        return self.predict(images, candidate_labels=candidate_labels, **more)

    def predict(
        self,
        images: Any,
        *,
        method: str | Method | None = None,
        image_id: str | None = None,
        workers: int | None = None,
        errors: str = "raise",
        candidate_labels: str | Sequence[str] | Sequence[Sequence[str]] | None = None,
        hypothesis_template: str | None = None,
    ) -> Any:
        """Return the :class:`Prediction` of one image, or a list of them for several images.

        Args:
            images: image accepted by :func:`otpt.images.open_image`, or an iterable of images.
            method: method of this call; the classifier's by default.
            image_id: key of the random views of a single image; a digest of its content by default.
            workers: number of threads that decode and augment images in advance; one per core by default.
            errors: "raise" an error at the first unusable image, or "return" a :class:`Failure` instead.
            candidate_labels, hypothesis_template: classes of this call; see :meth:`__call__`.
        """
        if errors not in ("raise", "return"):
            raise OtptError(f"errors is {errors!r}; expected 'raise' or 'return'.")
        one = is_one_image(images)
        chosen = None if method is None else (get_method(method),)
        predictor: Predictor | list[Predictor]
        if isinstance(candidate_labels, (list, tuple)) and any(not isinstance(each, str) for each in candidate_labels):
            predictor = self._predictors_of(candidate_labels, hypothesis_template, chosen)
        else:
            if candidate_labels is None and hypothesis_template is not None:
                raise OtptError("hypothesis_template needs candidate_labels; pass both, or call set_classes.")
            labels = None if candidate_labels is None else candidates(candidate_labels, hypothesis_template)
            predictor = self._predictor(chosen or self._settings_for(labels).methods[:1], labels)
        ids = None if image_id is None else [image_id]
        found: list[Any] = []
        for position, (image, answer) in enumerate(self._answers(images, predictor, ids, workers, one=one)):
            if not isinstance(answer, Exception):
                found.extend(answer.values())
            elif errors == "return" and isinstance(answer, OtptError):
                found.append(Failure(image.task.key, position, answer))
            else:
                raise answer if one else OtptError(f"Cannot use image {position + 1} of the list: {answer}")
        return found[0] if one else found

    def compare(self, images: Any, methods: Sequence[str | Method], *, image_id: str | None = None) -> Any:
        """Return {method name: prediction} of one image, or a list of such dicts; views are encoded once."""
        one = is_one_image(images)
        ids = None if image_id is None else [image_id]
        found = []
        for _, answer in self._answers(images, self._predictor(get_methods(methods)), ids, one=one):
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found[0] if one else found

    def stream(
        self,
        images: Iterable[Any],
        methods: Sequence[str | Method] | None = None,
        *,
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
    ) -> Iterator[Any]:
        """Lazily yield the predictions of images in order; an unusable image yields its error.

        Args:
            images: iterable of paths, PIL images, arrays or batches; data loader; torch or Hugging Face data set.
            methods: yield {method name: prediction} per image; by default, the prediction of the classifier's method.
            image_ids: keys of the random views; digests of the images' content by default.
            workers: number of threads that decode and augment images in advance; one per core by default.
        """
        chosen = (self.method,) if methods is None else get_methods(methods)
        for _, found in self._answers(images, self._predictor(chosen), image_ids, workers):
            yield found if methods is not None or isinstance(found, Exception) else found[self.method.name]

    def encode_views(self, image: ImageSource, *, image_id: str | None = None) -> Tensor:
        """Return the unit features (V, D) of an image's views, the clean view first."""
        recipe = self.recipe
        task = ImageTask("image", lambda: image, [recipe], self.seed, image_id, urls=self.urls)
        ((_, encoded),) = FeaturePipeline(self.backbone, threads=0)([task])
        if isinstance(encoded, OtptError):
            raise encoded
        return encoded.features[recipe.kind]

    def embed(self, images: Any, *, views: int | ViewRecipe = 1, workers: int | None = None) -> Tensor:
        """Return the unit features of one image (D,) or of several (N, D), averaged over ``views`` views."""
        one = is_one_image(images)
        found = []
        given = [images] if one else images
        for each in embed(self.backbone, given, views, seed=self.seed, workers=0 if one else workers, urls=self.urls):
            if isinstance(each, OtptError):
                raise each
            found.append(torch.from_numpy(each))
        return found[0] if one else torch.stack(found) if found else torch.empty(0, self.backbone.embed_dim)

    def classify_features(self, views: Tensor, methods: Sequence[str | Method]) -> list[dict[str, Prediction]]:
        """Return {method name: prediction} for each image of view features (B, V, D), clean view first."""
        if views.ndim != 3 or views.shape[2] != self.backbone.embed_dim:
            raise OtptError(
                f"The features have shape {tuple(views.shape)}; expected (B, V, {self.backbone.embed_dim}), clean view "
                "first; for one image pass features[None]."
            )
        chosen = get_methods(methods)
        outputs = self._predictor(chosen).of_features(views)
        return [predictions(chosen, each, self.settings, self._calibrations) for each in outputs]

    def explain(self, image: ImageSource, label: str | None = None, *, crops: int = 64, seed: int = 0) -> HeatMap:
        """Return the heat map of a label, by default the predicted one; see :func:`otpt.tasks.explain.explain`."""
        from otpt.tasks.explain import explain

        return explain(self, image, label, crops=crops, seed=seed)

    def export(self, path: str | Path) -> None:
        """Write the classifier to an ONNX file; see :func:`otpt.tasks.export.export_onnx`."""
        from otpt.tasks.export import export_onnx

        export_onnx(self, path)

    def calibrate(
        self, images: Iterable[ImageSource], labels: Sequence[Any], *, maps: Sequence[str] | None = None
    ) -> Calibration:
        """Fit a calibration on labelled images and apply it to all further predictions.

        Args:
            images: calibration images, disjoint from the test images.
            labels: class names or indices; with ``multi_label`` a list of class names per image; for a single class
                also a bool per image.
            maps: candidate calibration maps; see :func:`otpt.calibration.maps.choose_map`.

        Returns:
            The :class:`~otpt.calibration.Calibration`; save it with ``.write("cal.json")``.
        """
        several = self.method.adapt == MULTI_LABEL
        given = read_label_sets(labels, self.class_names) if several else _label_indices(labels, self.class_names)
        if isinstance(images, Sized):  # fail early
            _check_one_label_each(len(images), len(given))
        found = []
        for _, answer in self._answers(images, self._predictor((self.method,)), calibrations={}):
            if isinstance(answer, Exception):
                raise answer
            found.append(answer[self.method.name].probabilities)
        _check_one_label_each(len(found), len(given))
        probabilities = np.array(found).reshape(len(found), len(self.class_names))
        facts, origin = self._facts(self.method), {"dataset": "", "seed": self.seed}
        if several:
            calibration = fit_label_calibration(probabilities, np.array(given), facts, origin=origin)
        else:
            indices = np.array(given, np.int64)
            calibration = fit_calibration(probabilities, indices, facts, origin=origin, maps=maps)
        self.use_calibrations([calibration])
        return calibration

    def use_calibrations(
        self, calibrations: Sequence[CalibrationSource], methods: Sequence[str | Method] | None = None
    ) -> Classifier:
        """Apply calibrations to all further predictions and return the classifier; an empty list removes them.

        Args:
            calibrations: files, :class:`Calibration` or :class:`Calibrated` objects; at most one per method.
            methods: methods accepted in the calibrations; the classifier's method by default.
        """
        if isinstance(calibrations, CalibrationSource):
            raise OtptError("calibrations is a single calibration; expected a list: pass [calibration].")
        known = get_methods(methods or [self.method])
        found = calibrations_by_method(self.settings.replace(calibrations=tuple(calibrations)).calibrated, known)
        if self.settings.classes:
            for method in known:
                if method.name in found:
                    found[method.name].calibration.check(self._facts(method))
        self._calibrations = found
        return self

    def _answers(
        self,
        images: Any,
        predictor: Predictor | list[Predictor],
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
        *,
        one: bool = False,
        calibrations: Mapping[str, Calibrated] | None = None,
    ) -> Iterator[tuple[EncodedImage, dict[str, Prediction] | Exception]]:
        """Yield (image, predictions by method name or the error) in order.

        ``predictor`` is one predictor for all images, or a list with one per image.
        """
        inputs: Iterable[ImageInput] = image_inputs([images] if one else images, image_ids)
        if isinstance(predictor, list):
            inputs = list(inputs)
            if len(inputs) != len(predictor):
                raise OtptError(
                    f"candidate_labels has {len(predictor)} lists for {len(inputs)} images; expected one per image."
                )
        each_one = predictor if isinstance(predictor, list) else repeat(predictor)
        tasks = (
            own.task(each.shown, each.source, image_id=each.image_id, urls=self.urls)
            for own, each in zip(each_one, inputs, strict=False)
        )
        # fixed chunks make an image's features independent of the rest of the batch; a single image does not need them
        pipeline = FeaturePipeline(self.backbone, threads=0 if one else workers, fixed_chunks=not one)
        used = self._calibrations if calibrations is None else calibrations
        return (
            (image, found if isinstance(found, Exception) else predictions(own.methods, found, own.settings, used))
            for image, found in chain.from_iterable(stream(tasks, pipeline))
            for own in [image.task.predictor]
        )

    def _settings_for(self, labels: Labels | None) -> Settings:
        """Return the settings, with the classes replaced by ``labels`` if given."""
        if labels is not None:
            prompts = None if labels[1] is None else (labels[1],)
            return self.settings.replace(
                methods=self.settings.asked_methods,
                classes=labels[0],
                prompts=prompts,
                texts=None,
                attributes=None,
                groups=None,
                examples=None,
            )
        if not self.settings.classes:
            raise OtptError("No classes are set; call set_classes([...]) before predicting.")
        return self.settings

    def _predictor(self, methods: tuple[Method, ...], labels: Labels | None = None) -> Predictor:
        """Return the predictor for the methods and classes from an LRU cache."""
        if self._calibrations:
            self._check_calibrations(methods, labels)
        key = (labels, methods)
        if key not in self._predictors:
            settings = self._settings_for(labels)
            # texts=False: the encoder tokenises them and checks their lengths
            check_fit(self.backbone, settings, methods, texts=False, trained=False)
            while len(self._predictors) >= _MAX_PREDICTORS:
                self._predictors.popitem(last=False)
            self._predictors[key] = Predictor(self.backbone, settings, methods)
        self._predictors.move_to_end(key)
        return self._predictors[key]

    def _predictors_of(
        self, lists: Sequence[str | Sequence[str]], template: str | None, methods: tuple[Method, ...] | None
    ) -> list[Predictor]:
        """Return one predictor per list of candidate labels; texts in several lists are encoded once."""
        labels = [candidates(each, template) for each in lists]
        settings = {own: self._settings_for(own) for own in dict.fromkeys(labels)}
        names = list(dict.fromkeys(name for own in settings.values() for name in own.classes))
        texts: Tensor | None = None
        made = {}
        for own, each in settings.items():
            chosen = methods or each.methods[:1]
            if len(each.classes) == 1 or chosen[0].tunes or chosen[0].init != "words":
                made[own] = self._predictor(chosen, own)
                continue
            self._check_calibrations(chosen, own)
            if texts is None:
                together = each.replace(classes=names, allow_duplicates=True)
                texts = text_state(self.backbone, together, (each.prompts or DEFAULT_PROMPTS)[0], ()).text_features
            features = TextFeatures(texts[[names.index(name) for name in each.classes]])
            made[own] = Predictor(self.backbone, each.replace(texts=features), chosen)
        return [made[own] for own in labels]

    def _check_calibrations(self, methods: tuple[Method, ...], labels: Labels | None) -> None:
        """Raise if a calibration was fitted with other classes or another prompt."""
        for method in methods:
            if method.name in self._calibrations:
                self._calibrations[method.name].calibration.check(self._facts(method, labels))

    def _facts(self, method: Method, labels: Labels | None = None) -> dict[str, Any]:
        """Return the facts that determine whether a calibration applies to a method."""
        settings = self._settings_for(labels)
        ((prompt, _),) = columns(settings, [method])
        return calibration_facts(self.backbone, method, prompt, settings)

    def _encode_examples(self, settings: Settings) -> Settings:
        if settings.examples.features is not None:
            return settings
        return settings.replace(examples=settings.examples.encode(self.backbone, self.urls))

    def _set(self, settings: Settings) -> None:
        """Apply new settings and compute the text features; on an error, restore the previous settings."""
        if not settings.classes:
            raise OtptError("The list of class names is empty; expected at least two names.")
        if settings.examples is not None:
            settings = self._encode_examples(settings)
        before, self.settings = self.settings, settings
        self._predictors.clear()
        try:
            self._predictor(settings.methods[:1])
        except OtptError:
            self.settings = before
            raise
        if len(self.settings.classes) == 1 and not self._calibrations:
            warnings.warn(
                f"The probability that {self.settings.classes[0]!r} is present is a rough estimate, based on a "
                "comparison with common nouns; calibrate it on positive and negative images with clf.calibrate or "
                "'otpt calibrate'.",
                stacklevel=3,
            )


def load(
    model: Any,
    method: str | Method = DEFAULT_METHOD,
    *,
    device: str | torch.device = "auto",
    precision: str = "float32",
    compile: bool = False,
    architecture: str | None = None,
    quick_gelu: bool | None = None,
    tokenizer: Any = None,
    preprocess: Any = None,
    urls: UrlLimits | None = LIMITS,
    **fields: Any,
) -> Classifier:
    """Load a model and return a classifier.

    Args:
        model: open_clip architecture and tag ("ViT-B-16/openai"), ``hf-hub:…``, ``local-dir:…``, a file, or a model in
            memory, which is copied: an open_clip model with its ``tokenizer`` and ``preprocess``, or a Hugging Face
            ``CLIPModel`` or ``SiglipModel`` with its processor as ``preprocess``.
        method: method name ("o-tpt"), TOML file or :class:`Method`.
        device, precision, compile, architecture, quick_gelu, tokenizer, preprocess: see
            :func:`otpt.backbones.load_backbone`.
        urls: limits for downloads from http(s) URLs; None rejects URLs.
        fields: fields of :class:`otpt.settings.Settings`, such as ``views=16`` or ``classes=[…]``.

    Example:
        >>> import numpy as np, otpt
        >>> clf = otpt.load("pocket", method="o-tpt", views=8, device="cpu").set_classes(["cat", "dog"])
        >>> clf.predict(np.zeros((64, 64, 3), np.uint8)).method
        'o-tpt'
    """
    try:
        settings = Settings(methods=(method,), **fields)  # fail before loading a large model
    except OtptError:
        if isinstance(model, str) and method in open_clip_tags().get(model, ()):
            raise OtptError(
                f"{method!r} is a tag of weights, not a method; write otpt.load('{model}/{method}')."
            ) from None
        raise
    backbone = load_backbone(
        model,
        device=device,
        precision=precision,
        compile=compile,
        architecture=architecture,
        quick_gelu=quick_gelu,
        tokenizer=tokenizer,
        preprocess=preprocess,
    )
    return Classifier(backbone, settings, urls=urls)


def calibrations_by_method(given: Iterable[Calibrated], methods: Sequence[Method]) -> dict[str, Calibrated]:
    """Return calibrations by method name; raise for unexpected methods and duplicates."""
    found: dict[str, Calibrated] = {}
    for own in given:
        name = str(own.calibration.facts["method"]["name"])
        if name in found:
            raise OtptError(f"The method {name!r} has two calibrations; expected one per method.")
        if name not in {method.name for method in methods}:
            raise OtptError(
                f"The calibration was fitted for the method {name!r}, not for "
                f"{', '.join(repr(method.name) for method in methods)}; use that method, or omit the calibration."
            )
        found[name] = own
    return found


def candidates(labels: Any, template: str | None) -> Labels:
    """Parse candidate labels, given as a list or a comma-separated string."""
    given = tuple(each.strip() for each in labels.split(",")) if isinstance(labels, str) else tuple(labels)
    if not given:
        raise OtptError("candidate_labels is empty; expected at least two class names.")
    return given, template


def _label_indices(labels: Sequence[int | str], names: tuple[str, ...]) -> list[int]:
    """Convert labels, given as class names or indices, to indices."""
    if isinstance(labels, str):
        raise OtptError(f"The labels are the single string {labels!r}; expected a list with one label per image.")
    found = []
    for label in labels:
        if isinstance(label, str):
            if label not in names:
                raise unknown("label", label, names)
            found.append(names.index(label))
        elif not hasattr(label, "__index__") or not 0 <= label.__index__() < len(names):
            raise OtptError(f"The label {label!r} is not a class; expected 0 to {len(names) - 1}, or a class name.")
        else:
            found.append(label.__index__())
    return found


def _check_one_label_each(images: int, labels: int) -> None:
    if images != labels:
        raise OtptError(f"There are {images} images but {labels} labels; expected one label per image.")
