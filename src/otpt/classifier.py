"""The interface people use: load a model, set the classes once, predict many images.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from otpt.answering import Answering, CalibrationSource, candidates, label_indices
from otpt.backbones import Backbone, load_backbone
from otpt.backbones.sources.open_clip_names import open_clip_names
from otpt.calibration import Calibrated, Calibration, fit_calibration, read_calibration
from otpt.errors import OtptError, no_attribute
from otpt.features.given import is_one_image
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.images import KEYS, ImageSource, UrlLimits
from otpt.images.urls import LIMITS
from otpt.methods import Method, get_method, get_methods
from otpt.methods.inits.classes import ClassNames, own_templates, with_classes
from otpt.methods.task import Task
from otpt.prediction import Prediction
from otpt.prompts import MEMORY_BUDGET, Prompt, Templates
from otpt.prompts.learned import ContextSource, read_contexts
from otpt.rejection.registry import DEFAULT_SCORE
from otpt.settings import DEFAULT_METHOD, Fpp
from otpt.views import ViewRecipe


class Classifier(Answering):
    """A backbone with a method: set the classes once, predict many images.

    Args:
        backbone: from :func:`otpt.backbones.load_backbone`.
        method: a name ("o-tpt"), a TOML file ("mine.toml"), or a :class:`Method`.
        family: whose weights the method takes: "fine-grained" or "shift".
        recipe: number and kind of views; the paper's 64 with AugMix by default.
        seed: of the views. An image's views depend on (seed, image) alone.
        official_precision: round logits and softmax to float16 as the official scripts do.
        memory_budget: bytes that the graph of the text features may take.
        contexts: learned prompts for methods that start from one (``coop+o-tpt``): files, ``coop=FILE`` for its context
            alone, or what :func:`otpt.prompts.learned.read_learned` gives.
        templates: sentences of your own, for methods that start from the part ``templates``.
        fpp: FPP's numbers, for methods that start from ``fpp``; None takes the published ones.
        view_key: what keys an image's views: its decoded "pixels", or the bytes of its "file" as in earlier runs.
        urls: limits of images that are given as http(s) addresses; None refuses addresses.
        reject: score by which images that fit none of the classes are marked (:data:`otpt.rejection.SCORES`, such as
            "word-margin"); True takes the recommended one, None marks none.
        reject_threshold: above which an image is rejected, in place of the score's own.
        calibration: of this method: a file of ``otpt calibrate``, what :func:`otpt.calibration.read_calibration` gives,
            or a :class:`otpt.calibration.Calibrated`, which asks for prediction sets or abstention too.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: str | Method = DEFAULT_METHOD,
        *,
        family: str = "fine-grained",
        recipe: ViewRecipe | None = None,
        seed: int = 0,
        official_precision: bool = False,
        memory_budget: int = MEMORY_BUDGET,
        contexts: Sequence[ContextSource] = (),
        templates: Templates | Sequence[str | Callable[[str], str]] | None = None,
        fpp: Fpp | None = None,
        view_key: str = KEYS[0],
        urls: UrlLimits | None = LIMITS,
        reject: str | bool | None = None,
        reject_threshold: float | None = None,
        calibration: CalibrationSource | None = None,
    ) -> None:
        task = Task(
            ("", ""),
            family=family,
            recipe=recipe or ViewRecipe(),
            official_precision=official_precision,
            memory_budget=memory_budget,
            contexts=read_contexts(contexts),
            templates=None if templates is None else own_templates(templates),
            fpp=fpp or Fpp(),
            reject=DEFAULT_SCORE if reject is True else reject or None,
            reject_threshold=reject_threshold,
        )
        super().__init__(backbone, get_method(method), task, seed=seed, view_key=view_key, urls=urls)
        if calibration is not None:
            self.use_calibrations([calibration])

    if not TYPE_CHECKING:  # or no misspelt name would be found while checking types

        def __getattr__(self, name: str) -> object:
            """Say what to write for methods that models of other libraries have."""
            raise no_attribute(type(self).__name__, name, dir(type(self)), _METHODS_ELSEWHERE)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that are set."""
        return self._task_for(None).class_names

    @property
    def recipe(self) -> ViewRecipe:
        """The views of methods that need views."""
        return self._task.recipe

    def set_classes(
        self,
        names: ClassNames,
        prompt: str | Prompt | None = None,
        *,
        allow_duplicates: bool = False,
        attributes: Mapping[str, Sequence[str]] | str | Path | None = None,
        templates: Templates | Sequence[str | Callable[[str], str]] | None = None,
        text_features: Tensor | None = None,
    ) -> Classifier:
        """Prepare the text features, once for all images.

        Args:
            names: class names, two at least; or {name: descriptions}, whose text features are averaged.
            prompt: words of the context ("a photo of a"), or a :class:`Prompt`.
            allow_duplicates: accept a duplicate name, as ImageNet has two.
            attributes: of each class, as many for each, for methods that start from them (``tca``); or their file.
            templates: sentences with ``{}`` for the class name, or functions of it, whose text features are averaged.
            text_features: (C, D) computed elsewhere with the same model; of any norm. Like a dictionary and templates
                they leave no context, and are for methods that tune none (``zero-shot``, ``zero``, ``tps`` …).
        """
        task = with_classes(
            self._task,
            names,
            prompt,
            templates=templates,
            text_features=text_features,
            attributes=attributes,
            allow_duplicates=allow_duplicates,
        )
        self._set(task)
        return self

    def to(self, device: str | torch.device) -> Classifier:
        """Move the model to a device; the classifier itself is returned."""
        self.backbone = self.backbone.to(device)
        self._predictors.clear()
        return self

    def __call__(
        self,
        images: Any,
        candidate_labels: str | Sequence[str] | None = None,
        *,
        hypothesis_template: str | None = None,
        method: str | Method | None = None,
        errors: str = "raise",
    ) -> Any:
        """A prediction of one image, or a list of them for a list or a batch (B, C, H, W) of images.

        As in Hugging Face's pipeline, ``candidate_labels`` (a list, or a text with commas) are the classes of the call,
        in ``hypothesis_template`` ("a photo of a {}."); those of :meth:`set_classes` stay. Their text features are kept
        for the next calls. A :class:`Prediction` can be read like the pipeline's list, the best label first. ``method``
        takes the place of the classifier's for this call.
        """
        labels = candidates(candidate_labels, hypothesis_template)
        if is_one_image(images):
            return self._collect([images], labels, errors, method=method, workers=0, one=True)[0]
        return self._collect(images, labels, errors, method=method)

    def predict(
        self, image: ImageSource, *, method: str | Method | None = None, image_id: str | None = None
    ) -> Prediction:
        """What the classifier's method, or another one, says of one image, in any form that
        :func:`otpt.images.open_image` takes."""
        chosen = self.method if method is None else get_method(method)
        return self.compare(image, [chosen], image_id=image_id)[chosen.name]

    def predict_batch(
        self,
        images: Iterable[ImageSource],
        *,
        method: str | Method | None = None,
        workers: int | None = None,
        errors: str = "raise",
    ) -> list[Any]:
        """Predictions of many images, or of a batch (B, C, H, W), in order; by the classifier's method or another one.

        The first image that cannot be used raises an error that names it; with ``errors="return"`` there is a
        :class:`Failure` in its place.
        """
        return self._collect(images, None, errors, method=method, workers=workers)

    def compare(
        self, image: ImageSource, methods: Sequence[str | Method], *, image_id: str | None = None
    ) -> dict[str, Prediction]:
        """One image by several methods; its views are made and encoded once."""
        ids = None if image_id is None else [image_id]
        (answer,) = self.stream([image], methods, image_ids=ids, workers=0)
        if isinstance(answer, OtptError):
            raise answer
        return answer

    def stream(
        self,
        images: Iterable[ImageSource],
        methods: Sequence[str | Method],
        *,
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
    ) -> Iterator[dict[str, Prediction] | OtptError]:
        """Images by several methods, in order, as they come; a bad image yields its error in its place.

        Args:
            images: read lazily.
            methods: names, files or :class:`Method` objects; predictions come by name.
            image_ids: names that key the random views; the images' contents by default.
            workers: threads that decode and augment ahead; one per core by default.
        """
        chosen = get_methods(methods)
        self._check_calibrations(chosen)
        for _, answer in self._outputs(images, chosen, image_ids, workers):
            yield answer if isinstance(answer, OtptError) else self._by_name(answer, chosen)

    def encode_views(self, image: ImageSource, *, image_id: str | None = None) -> Tensor:
        """Unit features (V, D) of an image's views, the clean one first."""
        recipe = self.recipe
        task = ImageTask("image", lambda: image, [recipe], self.seed, image_id, view_key=self.view_key, urls=self.urls)
        ((_, encoded),) = FeaturePipeline(self.backbone, threads=0)([task])
        if isinstance(encoded, OtptError):
            raise encoded
        return encoded.features[recipe.kind]

    def classify_features(self, views: Tensor, methods: Sequence[str | Method]) -> list[dict[str, Prediction]]:
        """Predictions from image features (B, V, D), the clean view first: one dictionary per image."""
        if views.ndim != 3 or views.shape[2] != self.backbone.embed_dim:
            raise OtptError(
                f"Features of shape {tuple(views.shape)} were given; expected (B, V, {self.backbone.embed_dim}), the "
                "clean view first; of one image write features[None]."
            )
        chosen = get_methods(methods)
        self._check_calibrations(chosen)
        outputs = self._predictor(chosen).of_features(views, seed=self.seed)
        return [self._by_name(each, chosen) for each in outputs]

    def calibrate(
        self, images: Iterable[ImageSource], labels: Sequence[int | str], *, maps: Sequence[str] | None = None
    ) -> Calibration:
        """Calibrate the method on labelled images, and use that from now on; ``.write("cal.json")`` keeps it.

        ``labels`` are class names or their indices; ``maps`` are the candidates, see
        :func:`otpt.calibration.maps.choose_map`.
        """
        indices = label_indices(labels, self.class_names)
        if isinstance(images, Sized):  # told before hours of work, where that can be
            _check_one_label_each(len(images), len(indices))
        found = []
        for _, answer in self._outputs(images, (self.method,)):
            if isinstance(answer, OtptError):
                raise answer
            found.append(answer[0].probabilities)
        _check_one_label_each(len(found), len(indices))
        calibration = fit_calibration(
            np.array(found).reshape(len(found), len(self.class_names)),
            np.array(indices, np.int64),
            self._facts(self.method),
            origin={"dataset": "", "seed": self.seed},
            maps=maps,
        )
        self.use_calibrations([calibration])
        return calibration

    def use_calibrations(
        self, calibrations: Sequence[CalibrationSource], methods: Sequence[str | Method] | None = None
    ) -> Classifier:
        """Calibrate answers from now on; an empty list ends it.

        Args:
            calibrations: files, calibrations, or what is asked of them; at most one per method.
            methods: that they may be of; the classifier's own by default.
        """
        if isinstance(calibrations, CalibrationSource):
            raise OtptError("A single calibration was given; expected a list of them; write [calibration].")
        known = {method.name: method for method in get_methods(methods or [self.method])}
        found: dict[str, Calibrated] = {}
        for given in calibrations:
            own = given if isinstance(given, (Calibration, Calibrated)) else read_calibration(given)
            own = own if isinstance(own, Calibrated) else Calibrated(own)
            name = str(own.calibration.facts["method"]["name"])
            if name in found:
                raise OtptError(f"Two calibrations of the method {name!r} were given; expected one per method.")
            if name not in known:
                raise OtptError(
                    f"The calibration was made for the method {name!r}, not for {', '.join(map(repr, known))}; name "
                    "that method, or leave the calibration out."
                )
            if self._classes_set:
                own.calibration.check(self._facts(known[name]))
            found[name] = own
        self._calibrations = found
        return self


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
    **options: Any,
) -> Classifier:
    """A classifier on a model: an open_clip name with tag, ``hf-hub:…``, ``local-dir:…``, a file; or one in memory.

    A model of open_clip comes with its ``tokenizer`` and its ``preprocess``; one of Hugging Face (``CLIPModel``,
    ``SiglipModel``) with its processor as ``preprocess``. A copy of it is used: the model itself stays as it is.
    ``options`` are those of :class:`Classifier`; the others those of :func:`otpt.backbones.load_backbone`.
    """
    chosen = _method_of(model, method)  # a wrong name is told before a large model is read
    _check_options(options)
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
    return Classifier(backbone, chosen, **options)


def _check_one_label_each(images: int, labels: int) -> None:
    if images != labels:
        raise OtptError(f"{images} images but {labels} labels were given; expected one label per image.")


def _method_of(model: Any, method: str | Method) -> Method:
    """The method by name; the tag of the weights in its place, as open_clip has it, is recognised."""
    try:
        return get_method(method)
    except OtptError:
        if isinstance(model, str) and method in open_clip_names().tags.get(model, ()):
            raise OtptError(
                f"{method!r} is a tag of the weights, not a method; write otpt.load('{model}/{method}')."
            ) from None
        raise


_METHODS_ELSEWHERE = {
    "encode_image": "write encode_views(image), whose first row is the image itself",
    "encode_text": "write set_classes(names), which computes the text features once",
    "cuda": "write to('cuda')",
    "cpu": "write to('cpu')",
    "eval": "leave it out: it is never in training mode",
}
"""Methods of open_clip's models and of torch's modules."""

_ELSEWHERE = {
    "backbone": "it is the first argument, without a name",
    "pretrained": "the tag of the weights follows the name, as in 'ViT-B-32/openai'",
    "processor": "a processor is given as preprocess=",
    "image_processor": "it is given as preprocess=",
    "transform": "it is given as preprocess=",
    "views": "their number is given as recipe=otpt.ViewRecipe(n_views=8)",
    "n_views": "it is given as recipe=otpt.ViewRecipe(n_views=8)",
    "classes": "they are set by set_classes([…])",
    "candidate_labels": "they are set by set_classes([…]), or given with each image",
}
"""Options under names that other libraries have for them."""


def _check_options(options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(Classifier).parameters if name != "backbone"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*inspect.signature(load).parameters, *known], n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else "see help(otpt.load) and help(otpt.Classifier)."
            hint = f"{_ELSEWHERE[name]}." if name in _ELSEWHERE else hint
            raise OtptError(f"load has no option {name!r}; {hint}")
