"""All methods on the images of one class list, and the one loop that predicts images."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from torch import Tensor

from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods.batch import Batch
from otpt.methods.kinds import Group, kind_of
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.methods.path import PromptGroup
from otpt.methods.preparing import Column, columns, make_groups, needs_images, recipes_for, word_prompts
from otpt.registry import STREAM
from otpt.rejection import REJECTED, Rejector
from otpt.settings import Settings
from otpt.threads import in_threads, one_thread
from otpt.transfers import to_device, to_host

__all__ = ["Predictor", "kind_of", "predict", "stream", "stream_batches"]

Answered = tuple[EncodedImage, list[Output] | Exception]

IMAGES_TOGETHER = 8
"""On a GPU; as many contexts go through its text tower together."""


class Predictor:
    """Predicts images of one class list by all methods; text features are prepared on first use.

    Args:
        cache: of features, which holds gradients at the init too; None to compute all of them.
        groups: prepared methods, where their text features do not come from the backbone.

    Attributes:
        columns: (prompt, method) of an image's outputs, in their order.
        recipes: the views whose features are needed.
        one_pass: the images of a batch go through together, as they do on a GPU; on a CPU one thread has each.
    """

    def __init__(
        self,
        backbone: Any,
        settings: Settings,
        methods: Sequence[Method],
        *,
        cache: FeatureCache | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        self._backbone, self._settings, self._methods, self._cache = backbone, settings, tuple(methods), cache
        self.recipes = recipes_for(settings, methods)
        self.keep_image = needs_images(methods)
        self.columns: tuple[Column, ...] = columns(settings, methods)
        self.one_pass = backbone.device.type != "cpu"
        self._prepared = False
        if groups is not None:
            self.groups = list(groups)
        if settings.reject is not None and not self.recipes:
            named = ", ".join(method.name for method in methods)
            raise OtptError(
                f"{named}: unknown images are recognised by features, which no method here uses; leave --reject out."
            )

    @cached_property
    def groups(self) -> list[Group]:
        """The methods by their initial prompt, with their text features."""
        with one_thread():
            return make_groups(self._backbone, self._settings, self._methods, cache=self._cache)

    @cached_property
    def rejector(self) -> Rejector | None:
        """Scores images that fit none of the classes."""
        settings = self._settings
        if settings.reject is None:
            return None
        with one_thread():
            return Rejector(
                self._backbone,
                settings.classes,
                word_prompts(settings)[0],
                score=settings.reject,
                threshold=settings.reject_threshold,
                memory_budget=settings.memory_budget,
            )

    @cached_property
    def at_once(self) -> int:
        """Number of images processed concurrently within the memory budget; one for stream methods.

        Graphs of text features are retained as long as the budget allows; the others are computed for each image.
        """
        left = budget = self._settings.memory_budget
        largest = 1
        for group in self._tuned_groups():
            state = group.state
            largest = max(largest, state.bytes_per_image)
            if 0 < state.graph_bytes <= left:
                left -= state.graph_bytes
            else:
                largest = max(largest, state.graph_bytes or budget)
                state.release()
        in_order = any(method.scope == STREAM for method in self._methods)
        return 1 if in_order else max(budget // largest, 1)

    def _tuned_groups(self) -> list[PromptGroup]:
        prompted = (group for group in self.groups if isinstance(group, PromptGroup))
        return [group for group in prompted if any(method.tunes for method in group.methods)]

    def prepare(self) -> Predictor:
        """Compute the text features now."""
        _ = self.at_once, self.rejector
        if self._cache is not None:
            # many prompts, or a context for each class, would fill the cache with gradients instead of features
            groups = self._tuned_groups()
            numbers = sum(state.init.numel() for state in {group.state for group in groups})
            for group in groups:
                views = max(recipe.n_views for recipe in group.recipes)
                if not group.state.moves_images and numbers <= views * group.state.text_features.shape[1]:
                    group.cache = self._cache
        self._prepared = True
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the text features, their retained graphs and their token embeddings."""
        states = {group.state for group in self.groups if isinstance(group, PromptGroup)}
        return sum(each.graph_bytes + each.text_features.nbytes + each.encoder.nbytes for each in states)

    def task(self, key: Any, source: Any, *, seed: int, **more: Any) -> ImageTask:
        """An image for :func:`stream`; ``key`` is what messages call it."""
        return ImageTask(key, source, self.recipes, seed, keep_image=self.keep_image, predictor=self, **more)

    def missing_views(self, image: EncodedImage) -> dict[str, int]:
        """Kinds of views of which an image needs more than it has, and the number to encode next."""
        found = {}
        for recipe in self.recipes:
            known = image.features[recipe.kind]
            if len(known) < recipe.n_views and not self._is_enough(recipe.kind, known):
                found[recipe.kind] = next((n for n in recipe.rounds if n > len(known)), recipe.n_views)
        return found

    def _is_enough(self, kind: str, features: Tensor) -> bool:
        """Whether no method needs more views of this kind than those with features (n, D)."""
        with one_thread():
            return all(
                group.views_needed(recipe, features) <= len(features)
                for group in self.groups
                if isinstance(group, PromptGroup)
                for recipe in dict.fromkeys(group.recipes)
                if recipe.kind == kind and recipe.n_views > 1
            )

    def view_logits(self, image: EncodedImage) -> Tensor | None:
        """Zero-shot logits (V, C) of all views of an image, under the first initial prompt that all images share."""
        group = next((each for each in self.groups if isinstance(each, PromptGroup)), None)
        if not self.recipes or group is None or group.state.moves_images:
            return None
        kind = max(self.recipes, key=lambda each: each.n_views).kind
        with one_thread():
            found = group.state.initial(image.features[kind][None]).view_logits
        return None if found is None else found[0]

    def __call__(self, batch: Batch) -> list[list[Output]]:
        """The outputs of each image, column by column."""
        if not self._prepared:
            self.prepare()
        found: dict[Column, list[Output]] = {}
        for group in self.groups:
            for method, own in zip(group.methods, group.outputs(batch), strict=True):
                found[group.prompt, method.name] = own
        outputs = [[found[column][i] for column in self.columns] for i in range(len(batch))]
        return outputs if self.rejector is None else _mark(self.rejector, batch, outputs)

    def of_features(self, views: Tensor, *, seed: int = 0) -> list[list[Output]]:
        """The outputs of images of which only features (B, V, D) are known, the clean view first."""
        kinds = {recipe.kind for recipe in self.recipes}
        placed = to_device(views, self._backbone.device)
        task = self.task("features", _no_image, seed=seed)
        found = predict([EncodedImage(task, dict.fromkeys(kinds, own)) for own in placed])
        return [each for each in found if not isinstance(each, Exception)]


def stream(tasks: Iterable[ImageTask], pipeline: FeaturePipeline) -> Iterator[Answered]:
    """Predict images: (image, outputs column by column, or why there are none), in order.

    The one loop of ``predict``, ``evaluate``, the service and Ray. Threads of the pipeline decode and augment ahead;
    tasks may belong to different predictors.
    """
    return chain.from_iterable(stream_batches(tasks, pipeline))


def stream_batches(
    tasks: Iterable[ImageTask], pipeline: FeaturePipeline, *, catch: bool = False
) -> Iterator[list[Answered]]:
    """:func:`stream` with the images that are predicted together in a list.

    Budgets are spent in plain passes: the first views of a batch are encoded, then more views of the images that are
    not decided.

    Args:
        catch: an exception of a prediction takes its place; otherwise it is raised.
    """
    for batch in pipeline.batches(tasks, in_rounds=True):
        while True:
            for image in batch:
                image.missing = {} if image.error else image.task.predictor.missing_views(image)
            more = [image for image in batch if image.missing]
            if not more:
                break
            pipeline.encode_more(more)
        pipeline.store(batch)
        good = [image for image in batch if image.error is None]
        begun = time.perf_counter()
        answers = iter(predict(good, catch=catch))
        pipeline.note((image.task for image in good), "predict", begun)
        yield [(image, image.error or next(answers)) for image in batch]


def predict(images: Sequence[EncodedImage], *, catch: bool = False) -> list[list[Output] | Exception]:
    """The outputs of encoded images: on a CPU one thread has each image, on a GPU they go through together."""

    def one(batch: Batch) -> list[Any]:
        try:
            return batch.images[0].task.predictor(batch)
        except Exception as error:
            if not catch:
                raise
            return [error] * len(batch)

    if not images:
        return []
    if not images[0].task.predictor.one_pass:
        room = min(image.task.predictor.at_once for image in images)
        return [each[0] for each in in_threads(one, [Batch([i], i.task.seed) for i in images], at_once=room)]
    found: list[list[Output] | Exception] = []
    with one_thread():
        for (_, seed), alike in groupby(images, key=lambda image: (id(image.task.predictor), image.task.seed)):
            own = list(alike)
            for first in range(0, len(own), IMAGES_TOGETHER):
                found += one(Batch(own[first : first + IMAGES_TOGETHER], seed))
    return found


def _mark(rejector: Rejector, batch: Batch, outputs: list[list[Output]]) -> list[list[Output]]:
    """All outputs of an image with its score, and a flag if it is rejected."""
    (scores,) = to_host([rejector(batch.clean_features())])
    marked = []
    for value, own in zip(scores.tolist(), outputs, strict=True):
        flags = (REJECTED,) if rejector.is_unknown(value) else ()
        marked.append([replace(o, flags=o.flags + flags, extras={**o.extras, "unknown_score": value}) for o in own])
    return marked


def _no_image() -> Any:
    raise OtptError("Only the features of this image are given; the method needs its pixels.")
