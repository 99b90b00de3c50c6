"""The interface people use: load a model, set the classes once, predict many pictures.

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])
clf.predict("dog.jpg").label
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import fit_temperature, fixed_temperature, probabilities, sals
from otpt.errors import OtptError, unknown
from otpt.methods import FAMILIES, Method, get_method, get_methods
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.threads import available_threads, in_threads, one_thread
from otpt.tuning import Judgement, TextSide, judge, tune
from otpt.views import PictureSource, ViewLoader, ViewRecipe

KEPT_START = "start-prompt-kept"
"""Flag of a prediction whose gradient was not finite: the picture was judged with the un-tuned prompt."""


@dataclass(frozen=True)
class Prediction:
    """What a method says of a picture.

    Attributes:
        label: the name of the most probable class.
        confidence: its probability.
        index: its position in the class list.
        probabilities: (C,) float64, summing to one.
        class_names: all classes.
        method: the method's name.
        flags: what was out of the ordinary (:data:`KEPT_START`); empty as a rule.
        mean_cosine: mean cosine similarity between the texts of different classes that this picture was judged by.
    """

    label: str
    confidence: float
    index: int
    probabilities: npt.NDArray[np.float64]
    class_names: tuple[str, ...]
    method: str
    flags: tuple[str, ...] = ()
    mean_cosine: float = float("nan")

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities, best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[i], float(self.probabilities[i])) for i in order]


class Classifier:
    """A backbone with a method: classes are set once, pictures come many.

    Args:
        backbone: from :func:`otpt.backbones.load_backbone`.
        method: a name ("o-tpt"), a TOML file ("mine.toml"), or a :class:`Method`.
        family: which weights a method takes: "fine-grained" or "shift".
        recipe: number and kind of views; the paper's 64 with AugMix by default.
        seed: of the views. A picture's views depend on (seed, picture) alone.
        official_precision: round logits and soft-max to float16 as the official scripts do.
        memory_budget: bytes that the graph of the class texts may take.
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
    ) -> None:
        if family not in FAMILIES:
            raise unknown("family of data sets", family, FAMILIES)
        self.backbone = backbone
        self.method = get_method(method)
        self.family = family
        self.recipe = recipe or ViewRecipe()
        self.seed = seed
        self.official_precision = official_precision
        self._memory_budget = memory_budget
        self._text: TextSide | None = None
        self._check(self.method)

    @property
    def text(self) -> TextSide:
        """The prepared class texts."""
        if self._text is None:
            raise OtptError("No classes are set; call set_classes([...]) before predicting.")
        return self._text

    def set_classes(
        self, names: Sequence[str], prompt: str | Prompt | None = None, *, allow_duplicates: bool = False
    ) -> Classifier:
        """Prepare the class texts, once for all pictures.

        Args:
            names: class names, two at least.
            prompt: words of the context ("a photo of a"), or a :class:`Prompt`.
            allow_duplicates: accept a name that stands twice, as two names of ImageNet do.
        """
        with one_thread():
            self._text = TextSide(
                self.backbone,
                names,
                Prompt(prompt) if isinstance(prompt, str) else prompt,
                allow_duplicates=allow_duplicates,
                memory_budget=self._memory_budget,
            )
        return self

    def predict(self, picture: PictureSource, *, picture_id: str | None = None) -> Prediction:
        """What the classifier's method says of one picture: a path, bytes, a PIL image or an array."""
        return self.compare(picture, [self.method], picture_id=picture_id)[self.method.name]

    def predict_batch(self, pictures: Iterable[PictureSource], *, workers: int | None = None) -> list[Prediction]:
        """Predictions of many pictures, in order; the first picture that cannot be used raises its error."""
        found = []
        for answer in self.stream(pictures, [self.method], workers=workers):
            if isinstance(answer, OtptError):
                raise answer
            found.append(answer[self.method.name])
        return found

    def compare(
        self, picture: PictureSource, methods: Sequence[str | Method], *, picture_id: str | None = None
    ) -> dict[str, Prediction]:
        """One picture by several methods; its views are made and encoded once."""
        ids = None if picture_id is None else [picture_id]
        (answer,) = self.stream([picture], methods, picture_ids=ids, workers=0)
        if isinstance(answer, OtptError):
            raise answer
        return answer

    def stream(
        self,
        pictures: Iterable[PictureSource],
        methods: Sequence[str | Method],
        *,
        picture_ids: Iterable[str] | None = None,
        workers: int | None = None,
    ) -> Iterator[dict[str, Prediction] | OtptError]:
        """Pictures by several methods, in order, as they come; a bad picture yields its error in its place.

        Args:
            pictures: read lazily.
            methods: names, files or :class:`Method` objects; predictions come by name.
            picture_ids: names that key the random views; the pictures' contents by default.
            workers: threads that decode and augment ahead; one a core by default.
        """
        chosen = get_methods(methods)
        for method in chosen:
            self._check(method)
            if not method.ready:
                raise OtptError(
                    f"Method {method.name!r} needs a learned prompt or a trained system; run it by 'otpt evaluate'."
                )
        text = self.text
        for batch in self._feature_batches(pictures, self._recipe_for(chosen), picture_ids, workers):
            good = [each for each in batch if not isinstance(each, OtptError)]
            answers = iter(self.classify_features(torch.stack(good), chosen, text=text) if good else [])
            for each in batch:
                yield each if isinstance(each, OtptError) else next(answers)

    def encode_views(self, picture: PictureSource, *, picture_id: str | None = None) -> Tensor:
        """Unit features (V, D) of a picture's views, the clean one first."""
        ids = None if picture_id is None else [picture_id]
        ((feature,),) = self._feature_batches([picture], self.recipe, ids, 0)
        if isinstance(feature, OtptError):
            raise feature
        return feature

    def classify_features(
        self, views: Tensor, methods: Sequence[str | Method], *, text: TextSide | None = None
    ) -> list[dict[str, Prediction]]:
        """Predictions from image features (B, V, D), the clean view first: one dictionary a picture."""
        text = text or self.text
        chosen = get_methods(methods)
        plans = [plan for method in chosen if (plan := method.plan(self.family)) is not None]

        def answer(pictures: Tensor) -> list[dict[str, Prediction]]:
            return self.predictions(judge(text, pictures, plans), chosen, text.class_names)

        if self.backbone.device.type != "cpu":
            return answer(views)
        at_once = 1 if not text.linearisation.graph_bytes else None  # a graph made for each image: one at a time
        return [found for each in in_threads(answer, views.split(1), at_once=at_once) for found in each]

    def predictions(
        self, judged: Judgement, methods: Sequence[Method], class_names: tuple[str, ...]
    ) -> list[dict[str, Prediction]]:
        """What methods say of pictures that were judged under the start prompt and by every plan of these methods."""
        zero_shot = judged.logits
        answers: list[dict[str, Prediction]] = [{} for _ in zero_shot]
        for method in methods:
            plan = method.plan(self.family)
            logits = zero_shot if plan is None else judged.tuned[plan].logits
            cosine = judged.mean_cosine if plan is None else judged.tuned[plan].mean_cosine
            kept = [False] * len(zero_shot) if plan is None else judged.tuned[plan].skipped.tolist()
            shares = self._probabilities(logits, zero_shot, method).double().cpu().numpy()
            # From the logits: calibration keeps their order, but rounding may make ties of near-ties. The official
            # scripts do take the label from their rounded soft-max.
            best = shares.argmax(axis=1).tolist() if self.official_precision else logits.argmax(dim=1).tolist()
            for i, answer in enumerate(answers):
                answer[method.name] = Prediction(
                    label=class_names[best[i]],
                    confidence=float(shares[i].max()),
                    index=best[i],
                    probabilities=shares[i],
                    class_names=class_names,
                    method=method.name,
                    flags=(KEPT_START,) if kept[i] else (),
                    mean_cosine=float(cosine[i]),
                )
        return answers

    def calibrate(self, pictures: Iterable[PictureSource], labels: Sequence[int | str]) -> float:
        """Fit the method's temperature on labelled pictures (NLL) and use it from now on; returns it.

        ``labels`` are class names or their indices.
        """
        text = self.text
        indices = [_label_index(label, text.class_names) for label in labels]
        plan = self.method.plan(self.family)
        logits = []
        for batch in self._feature_batches(pictures, self._recipe_for([self.method]), None, None):
            for each in batch:
                if isinstance(each, OtptError):
                    raise each
                views = each[None]
                with one_thread():
                    logits.append(text.zero_shot(views) if plan is None else tune(text, views, [plan])[plan].logits)
        if len(logits) != len(indices):
            raise OtptError(
                f"{len(logits)} pictures but {len(indices)} labels were given; expected one label a picture."
            )
        temperature = fit_temperature(torch.cat(logits).cpu(), torch.tensor(indices))
        self.method = replace(self.method, calibration="temperature", temperature=temperature)
        return temperature

    def _check(self, method: Method) -> None:
        """Errors that would otherwise come only after the first picture."""
        if method.system:
            raise OtptError(
                f"Method {method.name!r} is a medical system of its own, which judges no single pictures here; run it "
                "by 'otpt evaluate' (see docs/medical.md)."
            )
        if method.calibration == "temperature" and method.temperature is None:
            fixed_temperature(self.backbone.family)

    def _recipe_for(self, methods: Sequence[Method]) -> ViewRecipe:
        """Where nothing is tuned the clean view is enough."""
        return self.recipe if any(method.objectives for method in methods) else replace(self.recipe, n_views=1)

    def _feature_batches(
        self,
        pictures: Iterable[PictureSource],
        recipe: ViewRecipe,
        picture_ids: Iterable[str] | None,
        workers: int | None,
    ) -> Iterator[list[Tensor | OtptError]]:
        """Features (V, D) of pictures, several pictures at a time through the image tower."""
        loader = ViewLoader(
            pictures,
            recipe,
            self.backbone.preprocessing,
            seed=self.seed,
            picture_ids=picture_ids,
            workers=(os.cpu_count() or 1) if workers is None else workers,
            dtype=np.float64 if self.backbone.dtype == torch.float64 else np.float32,
        )
        together = max(self.backbone.views_at_once // recipe.n_views, min(available_threads(), 8))
        made = iter(loader)
        while batch := [views for _, views in islice(made, together)]:
            good = [torch.from_numpy(views) for views in batch if not isinstance(views, OtptError)]
            features = iter(self.backbone.encode_pixels(torch.cat(good)).split(recipe.n_views) if good else [])
            yield [views if isinstance(views, OtptError) else next(features) for views in batch]

    def _probabilities(self, logits: Tensor, zero_shot: Tensor, method: Method) -> Tensor:
        if method.calibration == "sals":
            if self.official_precision:  # Robust-adapt keeps float16 logits, and rescales them in float32
                logits, zero_shot = logits.half().float(), zero_shot.half().float()
            return probabilities(sals(logits, zero_shot))
        temperature = 1.0
        if method.calibration == "temperature":
            temperature = method.temperature or fixed_temperature(self.backbone.family)
        return probabilities(logits, temperature=temperature, official=self.official_precision)


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


def _label_index(label: int | str, names: tuple[str, ...]) -> int:
    if isinstance(label, str):
        if label not in names:
            raise unknown("label", label, names)
        return names.index(label)
    if not 0 <= label < len(names):
        raise OtptError(f"The label {label} is not a class; expected 0 to {len(names) - 1}, or a class name.")
    return label
