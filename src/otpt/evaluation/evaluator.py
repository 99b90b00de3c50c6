"""Work items → shards: the loop of an evaluation in one process; it knows nothing of files or other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from torch import Tensor

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.calibrations import calibrated_output, check_calibrations
from otpt.evaluation.settings import Settings
from otpt.features.cache import FeatureCache
from otpt.features.digests import ShardDigests
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.methods import Method
from otpt.methods.inits.preparing import check_fit
from otpt.methods.output import Output
from otpt.methods.running.predictor import Predictor
from otpt.runs.rows import ShardRows
from otpt.runs.run import Column, WorkItem
from otpt.runs.shards import Shard
from otpt.views import ViewRecipe


@dataclass(frozen=True)
class Predicted:
    """An image that is done, as progress is reported: outputs column by column; none if it could not be read."""

    item: WorkItem
    label: int
    outputs: Sequence[Output]


@dataclass(frozen=True)
class _Place:
    """Where an image of an evaluation belongs."""

    item: WorkItem
    index: int
    name: str

    def __str__(self) -> str:
        """What messages call it: the id that its row has."""
        return f"{self.item.dataset}: {self.name}"


class Evaluator:
    """Predicts images by all prompts and methods: each image is decoded, augmented and encoded once.

    Args:
        cache: of image features and gradients at the init; None to compute everything.
        threads: that decode and augment (see :class:`FeaturePipeline`).
        on_image: called after each image.
    """

    def __init__(
        self,
        backbone: Any,
        datasets: Sequence[Dataset],
        settings: Settings,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        on_image: Callable[[Predicted], None] | None = None,
    ) -> None:
        self._backbone, self._settings, self._cache = backbone, settings, cache
        self._datasets = {dataset.name: dataset for dataset in datasets}
        self._pipeline = FeaturePipeline(backbone, cache=cache, threads=threads, features=settings.features)
        self._on_image = on_image
        self._prepared: dict[tuple[str, tuple[Column, ...]], Predictor] = {}
        # in rounds, the first images of the next data set are asked for while the last ones are predicted
        self._kept = 2 if settings.recipe.rounds else 1
        self._calibrations = {method.name: settings.calibrated(method.name) for method in settings.chosen}
        self._tasks = {dataset.name: settings.task_for(dataset) for dataset in datasets}
        for task in self._tasks.values():
            check_fit(backbone, task, settings.chosen)
            check_calibrations(backbone, task, settings.chosen, self._calibrations)

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, list[Shard], bool]]:
        """(item, shards that are ready, whether these were its last), in the order of the items."""
        encoded = self._pipeline(self._image_tasks(items))
        for item, images in groupby(encoded, key=lambda pair: pair[0].key.item):
            predictor = self._predictor(item)
            yield from self._shards(item, predictor, predictor.stream(images))

    def _image_tasks(self, items: Iterable[WorkItem]) -> Iterator[ImageTask]:
        for item in items:
            dataset, size = self._datasets[item.dataset], self._settings.shard_size
            methods, task = self._methods(item), self._tasks[item.dataset]
            recipes = task.recipes_for(methods)
            keep = task.needs_images(methods)
            order = stream_order(item.seed, dataset.ids[: item.stop]) if item.in_order else range(item.start, item.stop)
            last = {index // size: index for index in order}
            digests: dict[int, ShardDigests] = {}
            if self._cache is not None:
                digests = {
                    r: ShardDigests(self._cache.folder, dataset.fingerprint, r * size, size, self._settings.view_key)
                    for r in last
                }
            for index in order:
                yield ImageTask(
                    _Place(item, index, dataset.ids[index]),
                    partial(dataset.source, index),
                    recipes,
                    item.seed,
                    keep_image=keep,
                    is_enough=partial(self._is_enough, item),
                    digests=digests.get(index // size),
                    last=last[index // size] == index,
                    view_key=self._settings.view_key,
                )

    def _is_enough(self, item: WorkItem, recipe: ViewRecipe, features: Tensor) -> bool:
        return self._predictor(item).is_enough(recipe, features)

    def _shards(
        self, item: WorkItem, predictor: Predictor, answers: Iterator[tuple[ImageTask, list[Output] | OtptError]]
    ) -> Iterator[tuple[WorkItem, list[Shard], bool]]:
        dataset = self._datasets[item.dataset]
        chosen = [predictor.columns.index(column) for column in item.columns]
        size = self._settings.shard_size
        start, rows = item.start, self._rows(item, dataset)
        for position, (task, answer) in enumerate(answers, start=item.start):
            index, name = task.key.index, task.key.name
            # with BAPLe's trigger the target class, which is the seed, is what counts as right
            label = item.seed if dataset.backdoor else dataset.labels[index]
            outputs: list[Output] = []
            for i, own, (_, method) in zip(chosen, rows, item.columns, strict=True):
                if isinstance(answer, OtptError):
                    own.add_unreadable(index, name, label, str(answer))
                    continue
                calibrated = self._calibrations[method]
                output = answer[i] if calibrated is None else calibrated_output(calibrated, answer[i], label)
                own.add(index, name, label, output)
                outputs.append(output)
            if self._on_image is not None:
                self._on_image(Predicted(item, label, outputs))
            last = position == item.stop - 1
            if last or (item.in_order and (position + 1) % size == 0):
                first = start if item.in_order else item.first
                yield item, [own.shard(item.dataset, item.seed, first=first, start=start) for own in rows], last
                start, rows = position + 1, self._rows(item, dataset)

    def _rows(self, item: WorkItem, dataset: Dataset) -> list[ShardRows]:
        save, classes = self._settings.save_probabilities, len(dataset.class_names)
        return [ShardRows(column, classes, save_probabilities=save) for column in item.columns]

    def _methods(self, item: WorkItem) -> list[Method]:
        names = {method for _, method in item.columns}
        return [method for method in self._settings.chosen if method.name in names]

    def _predictor(self, item: WorkItem) -> Predictor:
        """The predictor of an item's data set and columns; those before are let go. A stream begins anew."""
        key = item.dataset, item.columns
        if item.in_order:
            self._prepared.pop(key, None)
        if key not in self._prepared:
            while len(self._prepared) >= self._kept:
                del self._prepared[next(iter(self._prepared))]
            task = self._tasks[item.dataset]
            names = {prompt for prompt, _ in item.columns}
            own = replace(task, prompts=[prompt for prompt in task.prompts if prompt.name in names])
            self._prepared[key] = Predictor(self._backbone, own, self._methods(item), cache=self._cache)
        return self._prepared[key]


def stream_order(seed: int, ids: Sequence[str]) -> list[int]:
    """The order of a stream: a permutation that the seed and the images' names decide."""
    keys = [hashlib.sha256(f"otpt stream 1/{seed}/{name}".encode()).digest() for name in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)
