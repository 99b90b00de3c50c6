"""Work items → shards: the loop of an evaluation in one process; it knows nothing of files or other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from otpt.data import Dataset
from otpt.evaluation.calibrations import calibrated_output, check_calibrations
from otpt.evaluation.settings import Settings
from otpt.features.cache import FeatureCache, ShardDigests
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods import Method
from otpt.methods.output import Output
from otpt.methods.predictor import Predictor, stream
from otpt.methods.preparing import check_fit
from otpt.runs.rows import ShardRows
from otpt.runs.run import Column, WorkItem
from otpt.runs.shards import Shard


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
        self._prepared: tuple[tuple[str, tuple[Column, ...]], Predictor] | None = None
        self._calibrations = {method.name: settings.calibrated(method.name) for method in settings.chosen}
        self._tasks = {dataset.name: settings.task_for(dataset) for dataset in datasets}
        for task in self._tasks.values():
            check_fit(backbone, task, settings.chosen)
            check_calibrations(backbone, task, settings.chosen, self._calibrations)

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, list[Shard], bool]]:
        """(item, shards that are ready, whether these were its last), in the order of the items."""
        answers = stream(self._image_tasks(items), self._pipeline)
        for item, own in groupby(answers, key=lambda pair: pair[0].task.key.item):
            yield from self._shards(item, own)

    def _image_tasks(self, items: Iterable[WorkItem]) -> Iterator[ImageTask]:
        for item in items:
            dataset, size = self._datasets[item.dataset], self._settings.shard_size
            predictor = self._predictor(item)
            order = stream_order(item.seed, dataset.ids[: item.stop]) if item.in_order else range(item.start, item.stop)
            last = {index // size: index for index in order}
            digests: dict[int, ShardDigests] = {}
            if self._cache is not None:
                digests = {r: ShardDigests(self._cache.folder, dataset.fingerprint, r * size, size) for r in last}
            for index in order:
                yield predictor.task(
                    _Place(item, index, dataset.ids[index]),
                    partial(dataset.source, index),
                    seed=item.seed,
                    digests=digests.get(index // size),
                    last=last[index // size] == index,
                )

    def _shards(
        self, item: WorkItem, answers: Iterator[tuple[EncodedImage, list[Output] | Exception]]
    ) -> Iterator[tuple[WorkItem, list[Shard], bool]]:
        dataset = self._datasets[item.dataset]
        size = self._settings.shard_size
        start, rows = item.start, self._rows(item, dataset)
        for position, (image, answer) in enumerate(answers, start=item.start):
            index, name = image.task.key.index, image.task.key.name
            # with BAPLe's trigger the target class, which is the seed, is what counts as right
            label = item.seed if dataset.backdoor else dataset.labels[index]
            outputs: list[Output] = []
            for own, (prompt, method) in zip(rows, item.columns, strict=True):
                if isinstance(answer, Exception):
                    own.add_unreadable(index, name, label, str(answer))
                    continue
                output = answer[image.task.predictor.columns.index((prompt, method))]
                calibrated = self._calibrations[method]
                if calibrated is not None:
                    output = calibrated_output(calibrated, output, label)
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
        """The predictor of an item's data set and columns; the last one is used again, but a stream starts afresh."""
        key = item.dataset, item.columns
        if self._prepared is None or self._prepared[0] != key or item.in_order:
            settings = self._tasks[item.dataset]
            names = {prompt for prompt, _ in item.columns}
            prompts = [prompt for prompt in settings.prompts or () if prompt.name in names]
            own = settings.replace(prompts=prompts or None)
            self._prepared = key, Predictor(self._backbone, own, self._methods(item), cache=self._cache)
        return self._prepared[1]


def stream_order(seed: int, ids: Sequence[str]) -> list[int]:
    """The order of a stream: a permutation that the seed and the images' names decide."""
    keys = [hashlib.sha256(f"otpt stream 1/{seed}/{name}".encode()).digest() for name in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)
