"""All methods on the images of one task: nothing is computed twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, ImageTask
from otpt.methods.batch import Batch
from otpt.methods.inits.preparing import make_groups
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.methods.running.groups import Group, TextGroup
from otpt.methods.task import Column, Task
from otpt.registry import STREAM
from otpt.rejection.registry import REJECTED
from otpt.rejection.rejector import Rejector
from otpt.threads import available_threads, in_threads, one_thread
from otpt.transfers import Steps, join, run, to_device
from otpt.views import ViewRecipe

_IMAGES_TOGETHER = 8
"""On a GPU; as many contexts go through its text tower together."""


class Predictor:
    """Predicts images of one task by all methods.

    Args:
        cache: of features, where gradients at the init are kept too; None to compute all of them.
        groups: the methods by their init, where their text features do not come from the backbone.

    Attributes:
        columns: (prompt, method) of an image's outputs, in their order.
        recipes: the views whose features are needed.
        one_pass: the images of a batch go through together, as they do on a GPU; on a CPU one thread has each.
    """

    def __init__(
        self,
        backbone: Any,
        task: Task,
        methods: Sequence[Method],
        *,
        cache: FeatureCache | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        self._device: torch.device = backbone.device
        self.one_pass = self._device.type != "cpu"
        self.recipes: tuple[ViewRecipe, ...] = task.recipes_for(methods)
        self.keep_image = task.needs_images(methods)
        self._in_order = any(method.scope == STREAM for method in methods)
        with one_thread():
            self._groups = make_groups(backbone, task, methods, cache=cache) if groups is None else list(groups)
        self.columns = task.columns(methods)
        self._rejector = self._make_rejector(backbone, task, methods)
        self._at_once = _share_memory(self._groups, task.memory_budget)
        self._use_cache(cache)

    @property
    def at_once(self) -> int:
        """How many images memory has room for at a time; one where they must come in order."""
        return 1 if self._in_order else self._at_once

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graphs of text features that are kept."""
        return sum(group.graph_bytes for group in self._groups)

    def view_logits(self, image: EncodedImage) -> Tensor | None:
        """Zero-shot logits (V, C) of all views of an image, under the first initial prompt that all images share."""
        kind = max(self.recipes, key=lambda each: each.n_views).kind if self.recipes else None
        group = next((each for each in self._groups if type(each) is TextGroup), None)
        if kind is None or group is None:
            return None
        text = group.text
        with one_thread():
            return text.logits(image.features[kind], text.class_features(text.text_features))

    def task(self, key: Any, source: Any, *, seed: int, **more: Any) -> ImageTask:
        """What the feature pipeline is to do for an image."""
        return ImageTask(key, source, self.recipes, seed, keep_image=self.keep_image, is_enough=self.is_enough, **more)

    def is_enough(self, recipe: ViewRecipe, features: Tensor) -> bool:
        """Whether no method needs more views of this kind of an image than those with features (n, D)."""
        texts = (group for group in self._groups if isinstance(group, TextGroup))
        with one_thread():
            return all(group.is_enough(recipe, features) for group in texts)

    def stream(
        self, encoded: Iterable[tuple[ImageTask, EncodedImage | OtptError]]
    ) -> Iterator[tuple[ImageTask, list[Output] | OtptError]]:
        """(task, outputs column by column, or why there are none), in order; a few images at a time."""
        images = iter(encoded)
        together = _IMAGES_TOGETHER if self.one_pass else available_threads()
        while batch := list(islice(images, together)):
            good = [found for _, found in batch if not isinstance(found, OtptError)]
            answers = iter(self(Batch(good, good[0].task.seed)) if good else [])
            for task, found in batch:
                yield task, found if isinstance(found, OtptError) else next(answers)

    def __call__(self, batch: Batch) -> list[list[Output]]:
        """The outputs of each image, column by column."""
        if self.one_pass:
            with one_thread():
                return self._predict(batch)
        return [each[0] for each in in_threads(self._predict, batch.each(), at_once=self.at_once)]

    def of_features(self, views: Tensor, *, seed: int = 0) -> list[list[Output]]:
        """The outputs of images of which only features (B, V, D) are known, the clean view first."""
        kinds = {recipe.kind for recipe in self.recipes}
        placed = to_device(views, self._device)
        images = [EncodedImage.of_features(dict.fromkeys(kinds, own), seed=seed) for own in placed]
        return self(Batch(images, seed))

    def _predict(self, batch: Batch) -> list[list[Output]]:
        works: list[Steps[Any]] = [*(group.steps(batch) for group in self._groups), self._unknown(batch)]
        *answers, unknown = run(join(works))
        found: dict[Column, list[Output]] = {}
        for group, own in zip(self._groups, answers, strict=True):
            found |= {(group.prompt, method.name): outputs for method, outputs in zip(group.methods, own, strict=True)}
        outputs = [[found[column][i] for column in self.columns] for i in range(len(batch))]
        return outputs if self._rejector is None else _marked(self._rejector, unknown, outputs)

    def _make_rejector(self, backbone: Any, task: Task, methods: Sequence[Method]) -> Rejector | None:
        if task.reject is None:
            return None
        if not self.recipes:
            named = ", ".join(method.name for method in methods)
            raise OtptError(
                f"{named}: unknown images are recognised by features, which no method here uses; leave --reject out."
            )
        with one_thread():
            return Rejector(
                backbone,
                task.class_names,
                task.prompts[0],
                score=task.reject,
                threshold=task.reject_threshold,
                memory_budget=task.memory_budget,
            )

    def _unknown(self, batch: Batch) -> Steps[list[float]]:
        """How unknown each image is; empty without a rejector."""
        if self._rejector is None:
            return []
        (scores,) = yield [self._rejector(batch.clean_features(self.recipes[0].kind))]
        values: list[float] = scores.tolist()
        return values

    def _use_cache(self, cache: FeatureCache | None) -> None:
        """Many prompts, or a context for each class, would fill the cache with gradients in place of features."""
        texts = [group for group in self._groups if isinstance(group, TextGroup)]
        size = sum(text.init.numel() for text in {group.text for group in texts})
        for group in texts:
            group.use_cache(cache, size)


def _marked(rejector: Rejector, scores: Sequence[float], outputs: list[list[Output]]) -> list[list[Output]]:
    """All outputs of an image with its score, and a flag if it is rejected."""
    marked = []
    for value, own in zip(scores, outputs, strict=True):
        flags = (REJECTED,) if rejector.is_unknown(value) else ()
        marked.append([replace(o, flags=o.flags + flags, extras={**o.extras, "unknown": value}) for o in own])
    return marked


def _share_memory(groups: Sequence[Group], budget: int) -> int:
    """How many images memory has room for at a time.

    Graphs are kept as long as the budget has room; the others are computed anew for each image.
    """
    left, largest = budget, 1
    for group in groups:
        if not any(method.objectives for method in group.methods):
            group.release()
            continue
        largest = max(largest, group.bytes_per_image)
        size = group.graph_bytes
        if 0 < size <= left:
            left -= size
        else:
            largest = max(largest, group.release())
    return max(budget // largest, 1)
