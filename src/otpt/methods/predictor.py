"""Prediction with several methods for one class list, and the loop over batches of images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NoReturn, TypeVar, cast

from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.images import ImageSource, UrlLimits
from otpt.methods.batch import Batch
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Column, Group, Setup, by_preparer, columns
from otpt.methods.protocol import Protocol
from otpt.methods.stages import Output
from otpt.methods.task import Task
from otpt.registry import STREAM
from otpt.rejection import REJECTED, Rejection, Rejector
from otpt.threads import cancellable, in_threads, one_thread
from otpt.transfers import to_device, to_host

IMAGES_TOGETHER = 8
"""Images per batch on a GPU, equal to the number of contexts per pass of the text tower."""

Key = TypeVar("Key")


class Predictor:
    """Predict images with several methods for one class list; text features are computed at construction.

    Args:
        backbone: the model.
        tasks: one task; or the same classes under several texts, for each of which methods that start from words have
            a column.
        protocol: methods and views.
        rejection: score and threshold for images that fit none of the classes; None to reject none.
        cache: cache of features and of gradients at the init.

    Attributes:
        methods: methods of the protocol.
        columns: (prompt, method) of an image's outputs, in order.
        recipes: recipes of the required views.
        groups: the methods by initial prompt, with their text features.
        sees_all_first: whether a method makes a first pass over all images of a set.
        rejector: scores images that fit none of the classes; None without ``rejection``.
        at_once: number of images processed concurrently within the memory budget; one for stream methods.
        one_pass: whether the images of a batch are processed together, as on a GPU, or one per thread.
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Sequence[Task],
        protocol: Protocol,
        rejection: Rejection | None = None,
        *,
        cache: FeatureCache | None = None,
    ) -> None:
        self.task, self.protocol, self.methods = tasks[0], protocol, protocol.methods
        self._device = backbone.device
        self.recipes = protocol.recipes_for(self.methods)
        self.columns: tuple[Column, ...] = columns(tasks, protocol, self.methods)
        self.sees_all_first = any(method.sees_all_first for method in self.methods)
        self.keep_image = any(method.prepared.needs_image for method in self.methods)
        self.one_pass = backbone.device.type != "cpu"
        if rejection is not None and not self.recipes:
            named = ", ".join(method.name for method in self.methods)
            raise OtptError(f"{named}: rejection needs image features, which no selected method uses; remove --reject.")
        with one_thread():
            self.groups = _prepare(backbone, tasks, protocol, cache)
            self.rejector: Rejector | None = None
            if rejection is not None:
                prompt, budget = tasks[0].prompt, protocol.memory_budget
                self.rejector = Rejector(
                    backbone,
                    tasks[0].classes,
                    prompt,
                    score=rejection.score,
                    threshold=rejection.threshold,
                    memory_budget=budget,
                )
        self._prompted = [group for group in self.groups if isinstance(group, PromptGroup)]
        tuned = [group for group in self._prompted if any(method.needs_context for method in group.methods)]
        self.at_once = self._retain_graphs(tuned)
        if cache is not None:
            # gradients of many prompts, or of a context for each class, would take more space than the features
            numbers = sum(state.init.numel() for state in {group.state for group in tuned})
            for group in tuned:
                views = max(recipe.n_views for recipe in group.recipes)
                if not group.state.moves_images and numbers <= views * group.state.text_features.shape[1]:
                    group.cache = cache

    def _retain_graphs(self, tuned: Sequence[PromptGroup]) -> int:
        """Retain graphs of text features within the memory budget; return the number of images processed at once.

        Graphs beyond the budget are released, and computed again for each image.
        """
        budget = left = self.protocol.memory_budget
        largest = 1
        for state in (group.state for group in tuned):
            size = state.graph_bytes
            largest = max(largest, state.bytes_per_image)
            if 0 < size <= left:
                left -= size
            else:
                largest = max(largest, size or budget)
                state.release()
        in_order = any(method.scope == STREAM for method in self.methods)
        return 1 if in_order else max(budget // largest, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the text features, their retained graphs and their token embeddings."""
        states = {group.state for group in self._prompted}
        return sum(state.graph_bytes + state.text_features.nbytes + state.encoder.nbytes for state in states)

    def image_task(
        self,
        key: Key,
        source: Callable[[], ImageSource],
        *,
        seed: int | None = None,
        image_id: str | None = None,
        urls: UrlLimits | None = None,
        first_pass: bool = False,
    ) -> ImageTask[Key]:
        """Return a task for :func:`stream`.

        Args:
            key: key that identifies the image; messages show ``str(key)``.
            source: thread-safe function that returns the image.
            seed: seed of the views; the protocol's by default.
            image_id: key of the random views; the digest of the content by default.
            urls: limits for downloads; None rejects URLs.
            first_pass: whether the prediction is discarded.
        """
        return ImageTask(
            key,
            source,
            self.recipes,
            self.protocol.seed if seed is None else seed,
            image_id,
            keep_image=self.keep_image,
            urls=urls,
            first_pass=first_pass,
            upright=self.protocol.upright,
        )

    def missing_views(self, image: EncodedImage[Key]) -> dict[str, int]:
        """Return the number of views to encode next, by kind of views that lacks some."""
        missing = {}
        for recipe in self.recipes:
            known, needed = image.features[recipe.kind], 0
            if len(known) < recipe.n_views:
                with one_thread():
                    for group in self._prompted:
                        recipes = [each for each in group.recipes if each.kind == recipe.kind and each.n_views > 1]
                        counts = [group.views_needed(each, known) for each in dict.fromkeys(recipes)]
                        needed = max([needed, *counts])
            if needed > len(known):
                missing[recipe.kind] = next((n for n in recipe.rounds if n > len(known)), recipe.n_views)
        return missing

    def view_logits(self, image: EncodedImage[Key]) -> Tensor | None:
        """Return the zero-shot logits (V, C) of all views under the first initial prompt shared by all images."""
        if not self.recipes or not self._prompted or self._prompted[0].state.moves_images:
            return None
        kind = max(self.recipes, key=lambda recipe: recipe.n_views).kind
        with one_thread():
            logits = self._prompted[0].state.initial(image.features[kind][None]).view_logits
        return None if logits is None else logits[0]

    def __call__(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of each image, column by column."""
        by_column: dict[Column, list[Output]] = {}
        for group in self.groups:
            for method, outputs in zip(group.methods, group.outputs(batch), strict=True):
                by_column[group.prompt, method.name] = outputs
        rows = [[by_column[column][i] for column in self.columns] for i in range(len(batch.images))]
        return rows if self.rejector is None else _mark(self.rejector, batch, rows)

    def of_features(self, views: Tensor) -> list[list[Output]]:
        """Return the outputs of images given by features (B, V, D), the clean view first."""
        kinds = {recipe.kind for recipe in self.recipes}
        task = self.image_task("features", _no_image)
        images = [EncodedImage(task, dict.fromkeys(kinds, image)) for image in to_device(views, self._device)]
        if self.one_pass:
            outputs: list[list[Output]] = []
            with one_thread():
                for first in range(0, len(images), IMAGES_TOGETHER):
                    outputs += self(Batch(images[first : first + IMAGES_TOGETHER], task.seed))
            return outputs
        batches = [Batch([image], task.seed) for image in images]
        return [row for (row,) in in_threads(self, batches, at_once=self.at_once)]


def _prepare(backbone: Backbone, tasks: Sequence[Task], protocol: Protocol, cache: FeatureCache | None) -> list[Group]:
    """Prepare the methods under each text; an init that uses no texts is prepared once."""
    groups: list[Group] = []
    for preparer, methods in by_preparer(protocol.methods):
        by_prompt: dict[str, Task] = {}
        for task in tasks:
            by_prompt.setdefault(preparer.prompt_name(task, protocol, methods[0]), task)
        for task in by_prompt.values():
            groups += preparer.prepare(Setup(backbone, task, protocol, methods, cache))
    return groups


def stream(
    tasks: Iterable[ImageTask[Key]],
    pipeline: FeaturePipeline,
    predictor_of: Callable[[Key], Predictor],
    *,
    catch: bool = False,
) -> Iterator[list[tuple[EncodedImage[Key], list[Output] | Exception]]]:
    """Yield batches of (image, outputs by column or an exception), in order.

    ``predict``, ``evaluate``, the service and Ray share this loop. Threads decode and augment images ahead of time.
    Tasks may belong to different predictors. With a budget the first views of a batch are encoded, then more views of
    the undecided images. On a CPU each image has one thread, on a GPU the images of a batch are processed together.

    Args:
        tasks: images to predict, read lazily.
        pipeline: encoder of the images.
        predictor_of: function that returns the predictor of an image by the key of its task.
        catch: yield exceptions of predictions instead of raising them.
    """

    def predict(batch: Batch) -> Sequence[list[Output] | Exception]:
        wanted = [image.task.wanted for image in batch.images]
        stop = None if None in wanted else lambda: not any(is_wanted() for is_wanted in wanted if is_wanted)
        try:
            with pipeline.reopening(batch.images), cancellable(stop):
                return predictor_of(cast(Key, batch.images[0].task.key))(batch)
        except Exception as error:
            if not catch:
                raise
            return [error] * len(batch.images)

    for images in pipeline.batches(tasks):
        in_rounds = [image for image in images if any(recipe.rounds for recipe in image.task.recipes)]
        if in_rounds:
            _encode_rounds(in_rounds, pipeline, predictor_of)
        pipeline.store(images)
        readable = [image for image in images if image.error is None]
        predictors = [predictor_of(image.task.key) for image in readable]
        begun = time.perf_counter()
        if predictors and predictors[0].one_pass:
            with one_thread():
                answers = [predict(batch) for batch in _together(readable, predictor_of)]
        else:
            room = min((predictor.at_once for predictor in predictors), default=1)
            answers = in_threads(predict, [Batch([image], image.task.seed) for image in readable], at_once=room)
        pipeline.note((image.task for image in readable), "predict", begun)
        rows = iter([row for answer in answers for row in answer])
        yield [(image, image.error or next(rows)) for image in images]


def _encode_rounds(
    undecided: list[EncodedImage[Key]], pipeline: FeaturePipeline, predictor_of: Callable[[Key], Predictor]
) -> None:
    """Encode further views of images with a view budget until each is decided."""
    while undecided:
        for image in undecided:
            image.missing = {} if image.error else predictor_of(image.task.key).missing_views(image)
        undecided = [image for image in undecided if image.missing]
        if undecided:
            pipeline.encode_more(undecided)


def _together(images: Sequence[EncodedImage[Key]], predictor_of: Callable[[Key], Predictor]) -> Iterator[Batch]:
    """Yield batches of consecutive images with the same predictor and seed."""
    for (_, seed), alike in groupby(images, key=lambda image: (id(predictor_of(image.task.key)), image.task.seed)):
        members = list(alike)
        for first in range(0, len(members), IMAGES_TOGETHER):
            yield Batch(members[first : first + IMAGES_TOGETHER], seed)


def _mark(rejector: Rejector, batch: Batch, rows: list[list[Output]]) -> list[list[Output]]:
    """Add the rejection score and, for rejected images, a flag to all outputs of an image."""
    (scores,) = to_host([rejector(batch.clean_features())])
    marked = []
    for score, outputs in zip(scores.tolist(), rows, strict=True):
        flags = (REJECTED,) if rejector.is_unknown(score) else ()
        extras = {"unknown_score": score}
        marked.append([replace(o, flags=o.flags + flags, extras={**o.extras, **extras}) for o in outputs])
    return marked


def _no_image() -> NoReturn:
    raise OtptError("The method needs the pixels of this image, but only its features are available.")
