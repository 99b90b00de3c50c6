"""The interface people use: load a model, set the classes once, predict many images.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import Calibrated, Calibration, fit_calibration, read_calibration
from otpt.errors import OtptError, unknown
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.images import ImageSource
from otpt.methods import Method, get_method, get_methods
from otpt.methods.batch import Batch
from otpt.methods.facts import calibration_facts
from otpt.methods.fpp.settings import Fpp
from otpt.methods.inits import check_fit
from otpt.methods.output import Output
from otpt.methods.predictor import Predictor
from otpt.methods.registry import DEFAULT_METHOD
from otpt.methods.task import OWN_NETWORK, Task
from otpt.prompts import MEMORY_BUDGET, Prompt, Templates, check_class_names
from otpt.prompts.learned import LearnedPrompt
from otpt.rejection.rejector import REJECTED
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
        reject: score by which images that fit none of the classes are marked (:data:`otpt.rejection.SCORES`, such as
            "word-margin"); None marks none.
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
        contexts: Sequence[LearnedPrompt] = (),
        templates: Templates | None = None,
        fpp: Fpp | None = None,
        reject: str | None = None,
        reject_threshold: float | None = None,
        calibration: str | Path | Calibration | Calibrated | None = None,
    ) -> None:
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
            reject=reject,
            reject_threshold=reject_threshold,
        )
        self._classes_set = False
        self._predictors: dict[tuple[Method, ...], Predictor] = {}
        _refuse_own_network([self.method])
        check_fit(backbone, self._task, [self.method], classes=False)
        self._calibrations: dict[str, Calibrated] = {}
        if calibration is not None:
            self.use_calibrations([calibration])

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
        self._check_calibrations([self.method])
        return self

    def predict(self, image: ImageSource, *, image_id: str | None = None) -> Prediction:
        """What the classifier's method says of one image: a path, bytes, a PIL image or an array."""
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
        self._check_calibrations(chosen)
        for answer in self._outputs(images, chosen, image_ids, workers):
            yield answer if isinstance(answer, OtptError) else self._by_name(answer, chosen)

    def encode_views(self, image: ImageSource, *, image_id: str | None = None) -> Tensor:
        """Unit features (V, D) of an image's views, the clean one first."""
        recipe = self._task.recipe
        task = ImageTask("image", lambda: image, [recipe], self.seed, image_id=image_id)
        ((_, encoded),) = FeaturePipeline(self.backbone, threads=0)([task])
        if isinstance(encoded, OtptError):
            raise encoded
        return encoded.features[recipe.kind]

    def classify_features(self, views: Tensor, methods: Sequence[str | Method]) -> list[dict[str, Prediction]]:
        """Predictions from image features (B, V, D), the clean view first: one dictionary per image."""
        chosen = get_methods(methods)
        predictor = self._predictor(chosen)
        self._check_calibrations(chosen)
        images = [
            EncodedImage.of_features({recipe.kind: own for recipe in predictor.recipes}, seed=self.seed)
            for own in views
        ]
        return [self._by_name(outputs, chosen) for outputs in predictor(Batch(images, self.seed))]

    def calibrate(
        self, images: Iterable[ImageSource], labels: Sequence[int | str], *, maps: Sequence[str] | None = None
    ) -> Calibration:
        """Calibrate the method on labelled images, and use that from now on; ``.write("cal.json")`` keeps it.

        ``labels`` are class names or their indices; ``maps`` are the candidates, see
        :func:`otpt.calibration.maps.choose_map`.
        """
        indices = [_label_index(label, self.class_names) for label in labels]
        found = []
        for answer in self._outputs(images, (self.method,)):
            if isinstance(answer, OtptError):
                raise answer
            found.append(answer[0].probabilities)
        if len(found) != len(indices):
            raise OtptError(f"{len(found)} images but {len(indices)} labels were given; expected one label per image.")
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
        self,
        calibrations: Sequence[str | Path | Calibration | Calibrated],
        methods: Sequence[str | Method] | None = None,
    ) -> Classifier:
        """Calibrate answers from now on; an empty list ends it.

        Args:
            calibrations: files, calibrations, or what is asked of them; at most one per method.
            methods: that they may be of; the classifier's own by default.
        """
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
            found[name] = own
        self._calibrations = found
        if self._classes_set:
            self._check_calibrations(list(known.values()))
        return self

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

    def _facts(self, method: Method) -> dict[str, Any]:
        ((prompt, _),) = self._set_task.columns([method])
        return calibration_facts(self.backbone, method, prompt, self._set_task)

    def _check_calibrations(self, methods: Sequence[Method]) -> None:
        """``OtptError`` if a calibration of one of the methods was made for something else."""
        for method in methods:
            if method.name in self._calibrations:
                self._calibrations[method.name].calibration.check(self._facts(method))

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
            yield predictor.task(_shown(image, position), lambda image=image: image, seed=self.seed, image_id=name)
        if names is not None and next(names, None) is not None:
            raise OtptError("There must be as many image ids as images; one list is shorter.")

    def _by_name(self, outputs: Sequence[Output], methods: Sequence[Method]) -> dict[str, Prediction]:
        found = zip(methods, outputs, strict=True)
        return {method.name: self._prediction(method, output) for method, output in found}

    def _prediction(self, method: Method, output: Output) -> Prediction:
        names, calibrated = self._task.class_names, self._calibrations.get(method.name)
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


_KEPT = 4
"""Sets of methods whose text features a classifier keeps."""


def load(
    spec: str,
    method: str | Method = DEFAULT_METHOD,
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
