"""The interface people use: load a model, set the classes once, predict many images.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import fit_temperature
from otpt.errors import OtptError, unknown
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.images import KEYS, ImageSource, UrlLimits
from otpt.images.reading import is_file_object, read_file_object
from otpt.images.urls import LIMITS
from otpt.methods import Method, get_method, get_methods
from otpt.methods.batch import Batch
from otpt.methods.fpp.settings import Fpp
from otpt.methods.inits import check_fit
from otpt.methods.output import Output
from otpt.methods.predictor import Predictor
from otpt.methods.task import OWN_NETWORK, Task
from otpt.prompts import MEMORY_BUDGET, Prompt, Templates, check_class_names
from otpt.prompts.learned import LearnedPrompt
from otpt.views import ViewRecipe


@dataclass(frozen=True)
class Prediction:
    """What a method says of an image.

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
    """

    label: str
    confidence: float
    index: int
    probabilities: npt.NDArray[np.float64]
    class_names: tuple[str, ...]
    method: str
    flags: tuple[str, ...] = ()
    extras: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_cosine(self) -> float:
        """See ``extras``; nan for methods without text features."""
        return self.extras.get("mean_cosine", float("nan"))

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities, best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[i], float(self.probabilities[i])) for i in order]


class Classifier:
    """A backbone with a method: set the classes once, predict many images.

    Args:
        backbone: from :func:`otpt.backbones.load_backbone`.
        method: a name ("o-tpt"), a TOML file ("mine.toml"), or a :class:`Method`.
        family: whose weights the method takes: "fine-grained" or "shift".
        recipe: number and kind of views; the paper's 64 with AugMix by default.
        seed: of the views. An image's views depend on (seed, image) alone.
        official_precision: round logits and softmax to float16 as the official scripts do.
        memory_budget: bytes that the graph of the text features may take.
        contexts: learned prompts for methods that start from one (``coop+o-tpt``): what
            :func:`otpt.prompts.learned.read_learned` gives.
        templates: sentences of your own, for methods that start from the part ``templates``.
        fpp: FPP's numbers, for methods that start from ``fpp``; None takes the published ones.
        view_key: what keys an image's views: its decoded "pixels", or the bytes of its "file" as in earlier runs.
        urls: limits of images that are given as http(s) addresses; None refuses addresses.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: str | Method = "o-tpt",
        *,
        family: str = "fine-grained",
        recipe: ViewRecipe | None = None,
        seed: int = 0,
        official_precision: bool = False,
        memory_budget: int = MEMORY_BUDGET,
        contexts: Sequence[LearnedPrompt] = (),
        templates: Templates | None = None,
        fpp: Fpp | None = None,
        view_key: str = KEYS[0],
        urls: UrlLimits | None = LIMITS,
    ) -> None:
        if view_key not in KEYS:
            raise unknown("key of the views", view_key, KEYS)
        self.view_key, self.urls = view_key, urls
        self.backbone = backbone
        self.method = get_method(method)
        self.seed = seed
        self._task = Task(
            ("", ""),
            family=family,
            recipe=recipe or ViewRecipe(),
            official_precision=official_precision,
            memory_budget=memory_budget,
            contexts={each.kind: each for each in contexts},
            templates=templates,
            fpp=fpp or Fpp(),
        )
        self._classes_set = False
        self._predictors: dict[tuple[Method, ...], Predictor] = {}
        _refuse_own_network([self.method])
        check_fit(backbone, self._task, [self.method], classes=False)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that are set."""
        return self._set_task.class_names

    @property
    def recipe(self) -> ViewRecipe:
        """The views of methods that need views."""
        return self._task.recipe

    def set_classes(
        self,
        names: Sequence[str],
        prompt: str | Prompt | None = None,
        *,
        allow_duplicates: bool = False,
        attributes: Mapping[str, Sequence[str]] | None = None,
    ) -> Classifier:
        """Prepare the text features, once for all images.

        Args:
            names: class names, two at least.
            prompt: words of the context ("a photo of a"), or a :class:`Prompt`.
            allow_duplicates: accept a duplicate name, as ImageNet has two.
            attributes: of each class, as many for each, for methods that start from them (``tca``).
        """
        given = Prompt(prompt) if isinstance(prompt, str) else prompt or Prompt()
        self._task = replace(
            self._task,
            class_names=check_class_names(names, allow_duplicates=allow_duplicates),
            prompts=(given,),
            attributes=attributes or {},
            allow_duplicates=allow_duplicates,
        )
        self._classes_set = True
        self._predictors.clear()
        self._predictor((self.method,))
        return self

    def predict(self, image: ImageSource, *, image_id: str | None = None) -> Prediction:
        """What the classifier's method says of one image, in any form that :func:`otpt.images.open_image` takes."""
        return self.compare(image, [self.method], image_id=image_id)[self.method.name]

    def predict_batch(self, images: Iterable[ImageSource], *, workers: int | None = None) -> list[Prediction]:
        """Predictions of many images, in order; the first image that cannot be used raises its error."""
        found = []
        for answer in self.stream(images, [self.method], workers=workers):
            if isinstance(answer, OtptError):
                raise answer
            found.append(answer[self.method.name])
        return found

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
        for answer in self._outputs(images, chosen, image_ids, workers):
            yield answer if isinstance(answer, OtptError) else self._by_name(answer, chosen)

    def encode_views(self, image: ImageSource, *, image_id: str | None = None) -> Tensor:
        """Unit features (V, D) of an image's views, the clean one first."""
        recipe = self._task.recipe
        task = ImageTask(
            "image",
            lambda: image,
            [recipe],
            self.seed,
            image_id=image_id,
            view_key=self.view_key,
            urls=self.urls,
        )
        ((_, encoded),) = FeaturePipeline(self.backbone, threads=0)([task])
        if isinstance(encoded, OtptError):
            raise encoded
        return encoded.features[recipe.kind]

    def classify_features(self, views: Tensor, methods: Sequence[str | Method]) -> list[dict[str, Prediction]]:
        """Predictions from image features (B, V, D), the clean view first: one dictionary per image."""
        chosen = get_methods(methods)
        predictor = self._predictor(chosen)
        images = [
            EncodedImage.of_features({recipe.kind: own for recipe in predictor.recipes}, seed=self.seed)
            for own in views
        ]
        return [self._by_name(outputs, chosen) for outputs in predictor(Batch(images, self.seed))]

    def calibrate(self, images: Iterable[ImageSource], labels: Sequence[int | str]) -> float:
        """Fit the method's temperature on labelled images (NLL) and use it from now on; returns it.

        ``labels`` are class names or their indices.
        """
        indices = [_label_index(label, self.class_names) for label in labels]
        plain = replace(self.method, calibrate="none", temperature=None)
        found = []
        for answer in self._outputs(images, (plain,)):
            if isinstance(answer, OtptError):
                raise answer
            found.append(_as_logits(answer[0]))
        if len(found) != len(indices):
            raise OtptError(f"{len(found)} images but {len(indices)} labels were given; expected one label per image.")
        temperature = fit_temperature(torch.stack(found).cpu(), torch.tensor(indices))
        self.method = replace(self.method, calibrate="temperature", temperature=temperature)
        self._predictors.clear()
        return temperature

    @property
    def _set_task(self) -> Task:
        if not self._classes_set:
            raise OtptError("No classes are set; call set_classes([...]) before predicting.")
        return self._task

    def _predictor(self, methods: tuple[Method, ...]) -> Predictor:
        """The predictor of these methods; the last ones are kept."""
        task = self._set_task
        if methods not in self._predictors:
            _refuse_own_network(methods)
            check_fit(self.backbone, task, methods)
            while len(self._predictors) >= _KEPT:
                del self._predictors[next(iter(self._predictors))]
            self._predictors[methods] = Predictor(self.backbone, task, methods)
        return self._predictors[methods]

    def _outputs(
        self,
        images: Iterable[ImageSource],
        methods: tuple[Method, ...],
        image_ids: Iterable[str] | None = None,
        workers: int | None = None,
    ) -> Iterator[list[Output] | OtptError]:
        predictor = self._predictor(methods)
        encoded = FeaturePipeline(self.backbone, threads=workers)(self._tasks(images, image_ids, predictor))
        return (answer for _, answer in predictor.stream(encoded))

    def _tasks(
        self, images: Iterable[ImageSource], image_ids: Iterable[str] | None, predictor: Predictor
    ) -> Iterator[ImageTask]:
        names = None if image_ids is None else iter(image_ids)
        for position, image in enumerate(images):
            name = None if names is None else next(names, None)
            if names is not None and name is None:
                raise OtptError("There must be as many image ids as images; one list is shorter.")
            yield predictor.task(
                _shown(image, position),
                _source(image),
                seed=self.seed,
                image_id=name,
                view_key=self.view_key,
                urls=self.urls,
            )
        if names is not None and next(names, None) is not None:
            raise OtptError("There must be as many image ids as images; one list is shorter.")

    def _by_name(self, outputs: Sequence[Output], methods: Sequence[Method]) -> dict[str, Prediction]:
        names = self._task.class_names
        return {
            method.name: Prediction(
                label=names[output.index],
                confidence=output.confidence,
                index=output.index,
                probabilities=output.probabilities,
                class_names=names,
                method=method.name,
                flags=output.flags,
                extras=output.extras,
            )
            for method, output in zip(methods, outputs, strict=True)
        }


_KEPT = 4
"""Sets of methods whose text features a classifier keeps."""


def load(
    spec: str,
    method: str | Method = "o-tpt",
    *,
    device: str = "auto",
    precision: str = "float32",
    architecture: str | None = None,
    quick_gelu: bool | None = None,
    **options: Any,
) -> Classifier:
    """A classifier on a backbone: an open_clip name with tag, ``hf-hub:…``, ``local-dir:…``, or a file.

    ``options`` are those of :class:`Classifier`; the others those of :func:`otpt.backbones.load_backbone`.
    """
    chosen = get_method(method)  # a wrong name is told before a large model is read
    backbone = load_backbone(spec, device=device, precision=precision, architecture=architecture, quick_gelu=quick_gelu)
    return Classifier(backbone, chosen, **options)


def _refuse_own_network(methods: Sequence[Method]) -> None:
    own = next((method for method in methods if method.adapt in OWN_NETWORK), None)
    if own is not None:
        raise OtptError(
            f"Method {own.name!r} predicts with what was trained for it; run it with 'otpt evaluate', in Python with "
            "otpt.evaluation.evaluate."
        )


def _as_logits(output: Output) -> Tensor:
    """Logits (C,): softmax(log p) = p, where more than one view decided."""
    if output.logits is not None:
        return output.logits
    return torch.from_numpy(np.log(np.maximum(output.probabilities, np.finfo(np.float64).tiny)))


def _source(image: ImageSource) -> Callable[[], ImageSource]:
    """How the threads of the pipeline get an image; a file object is read now, by the thread that it belongs to."""
    if not is_file_object(image) or isinstance(image, Image.Image):
        return lambda: image
    try:
        data = read_file_object(image)
    except OtptError as error:
        return partial(_raise, error)
    return lambda: data


def _raise(error: OtptError) -> NoReturn:
    raise error


def _shown(image: ImageSource, position: int) -> str:
    return str(image) if isinstance(image, str) or hasattr(image, "__fspath__") else f"image {position + 1}"


def _label_index(label: int | str, names: tuple[str, ...]) -> int:
    if isinstance(label, str):
        if label not in names:
            raise unknown("label", label, names)
        return names.index(label)
    if not 0 <= label < len(names):
        raise OtptError(f"The label {label} is not a class; expected 0 to {len(names) - 1}, or a class name.")
    return label
