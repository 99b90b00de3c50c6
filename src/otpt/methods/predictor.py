"""Prediction with several methods for one class list, and the loop over batches of images."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any

from torch import Tensor

from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods.finish import Output
from otpt.methods.inits import Column, Group, by_kind, columns
from otpt.methods.method import Method, kind_of, recipes_for
from otpt.methods.path import Batch, PromptGroup
from otpt.prompts import DEFAULT_PROMPTS
from otpt.registry import STREAM
from otpt.rejection import REJECTED, Rejector
from otpt.settings import Settings
from otpt.threads import cancellable, in_threads, one_thread
from otpt.transfers import to_device, to_host

IMAGES_TOGETHER = 8
"""Images per batch on a GPU, equal to the number of contexts per pass of the text tower."""


class Predictor:
    """Predict images with several methods for one class list; text features are computed at construction.

    Args:
        cache: of features and of gradients at the init.
        groups: prepared methods, if their text features do not come from the backbone.

    Attributes:
        columns: (prompt, method) of an image's outputs, in order.
        recipes: recipes of the required views.
        groups: the methods by initial prompt, with their text features.
        sees_all_first: whether a method makes a first pass over all images of a set.
        rejector: scores images that fit none of the classes; None without ``reject=``.
        at_once: number of images processed concurrently within the memory budget; one for stream methods.
        one_pass: whether the images of a batch are processed together, as on a GPU, or one per thread.
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
        self.settings, self.methods, self._device = settings, tuple(methods), backbone.device
        self.recipes = recipes_for(settings, methods)
        self.columns: tuple[Column, ...] = columns(settings, methods)
        self.sees_all_first = any(method.sees_all_first for method in methods)
        self.keep_image = any(kind_of(method).needs_image(method) for method in methods)
        self.one_pass = backbone.device.type != "cpu"
        if settings.reject is not None and not self.recipes:
            named = ", ".join(method.name for method in methods)
            raise OtptError(f"{named}: rejection needs image features, which no selected method uses; remove --reject.")
        self.rejector: Rejector | None = None
        with one_thread():
            if groups is None:
                kinds = by_kind(methods).items()
                groups = [group for kind, own in kinds for group in kind.make(backbone, settings, own, cache)]
            self.groups = list(groups)
            if settings.reject is not None:
                self.rejector = Rejector(
                    backbone,
                    settings.classes,
                    (settings.prompts or DEFAULT_PROMPTS)[0],
                    score=settings.reject,
                    threshold=settings.reject_threshold,
                    memory_budget=settings.memory_budget,
                )
        self._prompted = [group for group in self.groups if isinstance(group, PromptGroup)]
        tuned = [group for group in self._prompted if any(method.needs_context for method in group.methods)]
        # retain graphs of text features within the memory budget; recompute the others for each image
        left, largest = settings.memory_budget, 1
        for state in (group.state for group in tuned):
            size = state.graph_bytes
            largest = max(largest, state.bytes_per_image)
            if 0 < size <= left:
                left -= size
            else:
                largest = max(largest, size or settings.memory_budget)
                state.release()
        in_order = any(method.scope == STREAM for method in methods)
        self.at_once = 1 if in_order else max(settings.memory_budget // largest, 1)
        if cache is not None:
            # gradients of many prompts, or of a context for each class, would take more space than the features
            numbers = sum(state.init.numel() for state in {group.state for group in tuned})
            for group in tuned:
                views = max(recipe.n_views for recipe in group.recipes)
                if not group.state.moves_images and numbers <= views * group.state.text_features.shape[1]:
                    group.cache = cache

    @property
    def nbytes(self) -> int:
        """Bytes of the text features, their retained graphs and their token embeddings."""
        states = {group.state for group in self._prompted}
        return sum(each.graph_bytes + each.text_features.nbytes + each.encoder.nbytes for each in states)

    def task(self, key: Any, source: Any, *, seed: int | None = None, **more: Any) -> ImageTask:
        """Create a task for :func:`stream`; ``key`` identifies the image. The seed defaults to the settings'."""
        seed = self.settings.seed if seed is None else seed
        return ImageTask(key, source, self.recipes, seed, keep_image=self.keep_image, predictor=self, **more)

    def missing_views(self, image: EncodedImage) -> dict[str, int]:
        """Return the number of views to encode next, by kind of views that lacks some."""
        found = {}
        for recipe in self.recipes:
            known, needed = image.features[recipe.kind], 0
            if len(known) < recipe.n_views:
                with one_thread():
                    for group in self._prompted:
                        own = [each for each in group.recipes if each.kind == recipe.kind and each.n_views > 1]
                        needed = max([needed, *(group.views_needed(each, known) for each in dict.fromkeys(own))])
            if needed > len(known):
                found[recipe.kind] = next((n for n in recipe.rounds if n > len(known)), recipe.n_views)
        return found

    def view_logits(self, image: EncodedImage) -> Tensor | None:
        """Return the zero-shot logits (V, C) of all views under the first initial prompt shared by all images."""
        if not self.recipes or not self._prompted or self._prompted[0].state.moves_images:
            return None
        kind = max(self.recipes, key=lambda each: each.n_views).kind
        with one_thread():
            found = self._prompted[0].state.initial(image.features[kind][None]).view_logits
        return None if found is None else found[0]

    def __call__(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of each image, column by column."""
        found: dict[Column, list[Output]] = {}
        for group in self.groups:
            for method, own in zip(group.methods, group.outputs(batch), strict=True):
                found[group.prompt, method.name] = own
        outputs = [[found[column][i] for column in self.columns] for i in range(len(batch.images))]
        return outputs if self.rejector is None else _mark(self.rejector, batch, outputs)

    def of_features(self, views: Tensor) -> list[list[Output]]:
        """Return the outputs of images given by features (B, V, D), the clean view first."""
        kinds = {recipe.kind for recipe in self.recipes}
        task = self.task("features", _no_image)
        images = [EncodedImage(task, dict.fromkeys(kinds, own)) for own in to_device(views, self._device)]
        if self.one_pass:
            with one_thread():
                return [each for batch in _together(images) for each in self(batch)]
        found = in_threads(self, [Batch([image], task.seed) for image in images], at_once=self.at_once)
        return [each for (each,) in found]


def stream(
    tasks: Iterable[ImageTask], pipeline: FeaturePipeline, *, catch: bool = False
) -> Iterator[list[tuple[EncodedImage, list[Output] | Exception]]]:
    """Yield batches of (image, outputs by column or an exception), in order.

    ``predict``, ``evaluate``, the service and Ray share this loop. Threads decode and augment images ahead of time.
    Tasks may belong to different predictors. With a budget the first views of a batch are encoded, then more views of
    the undecided images. On a CPU each image has one thread, on a GPU the images of a batch are processed together.

    Args:
        catch: yield exceptions of predictions instead of raising them.
    """

    def predict(batch: Batch) -> list[Any]:
        wanted = [image.task.wanted for image in batch.images]
        stop = None if None in wanted else lambda: not any(each() for each in wanted if each)
        try:
            with pipeline.reopening(batch.images), cancellable(stop):
                return batch.images[0].task.predictor(batch)
        except Exception as error:
            if not catch:
                raise
            return [error] * len(batch.images)

    for images in pipeline.batches(tasks):
        more = [image for image in images if any(recipe.rounds for recipe in image.task.recipes)]
        while more:
            for image in more:
                image.missing = {} if image.error else image.task.predictor.missing_views(image)
            more = [image for image in more if image.missing]
            if more:
                pipeline.encode_more(more)
        pipeline.store(images)
        good = [image for image in images if image.error is None]
        begun = time.perf_counter()
        if good and good[0].task.predictor.one_pass:
            with one_thread():
                answers = [predict(batch) for batch in _together(good)]
        else:
            room = min((image.task.predictor.at_once for image in good), default=1)
            answers = in_threads(predict, [Batch([image], image.task.seed) for image in good], at_once=room)
        pipeline.note((image.task for image in good), "predict", begun)
        found = chain.from_iterable(answers)
        yield [(image, image.error or next(found)) for image in images]


def _together(images: Sequence[EncodedImage]) -> Iterator[Batch]:
    """Yield batches of consecutive images with the same predictor and seed."""
    for (_, seed), alike in groupby(images, key=lambda image: (id(image.task.predictor), image.task.seed)):
        own = list(alike)
        for first in range(0, len(own), IMAGES_TOGETHER):
            yield Batch(own[first : first + IMAGES_TOGETHER], seed)


def _mark(rejector: Rejector, batch: Batch, outputs: list[list[Output]]) -> list[list[Output]]:
    """Add the rejection score and, for rejected images, a flag to all outputs of an image."""
    (scores,) = to_host([rejector(batch.clean_features())])
    marked = []
    for value, own in zip(scores.tolist(), outputs, strict=True):
        flags = (REJECTED,) if rejector.is_unknown(value) else ()
        marked.append([replace(o, flags=o.flags + flags, extras={**o.extras, "unknown_score": value}) for o in own])
    return marked


def _no_image() -> Any:
    raise OtptError("The method needs the pixels of this image, but only its features are available.")
