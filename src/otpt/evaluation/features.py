"""Pictures of many parts → their image features, in order: from the cache where it has them, else encoded.

Threads look into the cache, decode and augment ahead; the image tower runs in the calling thread. A picture that is in
the cache is neither decoded nor encoded, and not even read if its file looks as it did the last time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.cache import FeatureCache, feature_key
from otpt.evaluation.digests import PartDigests, file_state
from otpt.evaluation.run import WorkItem
from otpt.evaluation.settings import Settings
from otpt.views import ViewRecipe, make_views, open_with_digest

_MOST_THREADS = 16

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class _Task:
    item: WorkItem
    index: int
    recipe: ViewRecipe
    digests: PartDigests | None


@dataclass(frozen=True)
class _Views:
    """A picture that is to be encoded: its key in the cache, and pixels (V, 3, S, S)."""

    key: str
    pixels: npt.NDArray[np.float32]


class FeatureStream:
    """Features of the pictures of work items.

    Args:
        cache: None to encode everything.
        threads: that decode and augment; by default one a core, 16 at most. 0: none, all in the calling thread.
    """

    def __init__(
        self,
        backbone: Backbone,
        datasets: Sequence[Dataset],
        settings: Settings,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
    ) -> None:
        self._backbone = backbone
        self._datasets = datasets
        self._settings = settings
        self._cache = cache
        self._threads = min(os.cpu_count() or 1, _MOST_THREADS) if threads is None else threads

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, int, Tensor | OtptError]]:
        """(item, index, features (V, D) on the backbone's device, or why there are none), in the order of the items."""
        at_once = self._backbone.views_at_once
        waiting: list[tuple[_Task, Tensor | _Views | OtptError]] = []
        pixels = 0
        for task, found in look_ahead(self._prepare, self._tasks(items), self._threads):
            waiting.append((task, found))
            pixels += len(found.pixels) if isinstance(found, _Views) else 0
            if pixels == 0 or pixels >= at_once:
                yield from self._encode(waiting)
                waiting, pixels = [], 0
        yield from self._encode(waiting)

    def _tasks(self, items: Iterable[WorkItem]) -> Iterator[_Task]:
        for item in items:
            dataset = self._datasets[item.dataset]
            recipe = self._settings.recipe_for(dataset)
            digests = None
            if self._cache is not None:
                digests = PartDigests(self._cache.folder, dataset.fingerprint, item.start, item.stop)
            for index in range(item.start, item.stop):
                yield _Task(item, index, recipe, digests)

    def _prepare(self, task: _Task) -> Tensor | _Views | OtptError:
        """What can be done without the image tower; called by any thread."""
        try:
            source = self._datasets[task.item.dataset][task.index].source
            state = file_state(source)
            if task.digests is not None and (known := task.digests.find(state)) is not None:
                cached = self._cached(self._key(task, known), task.recipe)
                if cached is not None:
                    return cached
            picture, digest = open_with_digest(source)
            key = self._key(task, digest)
            if task.digests is not None:
                task.digests.remember(state, digest)
                cached = self._cached(key, task.recipe)
                if cached is not None:
                    return cached
            views = make_views(
                picture, task.recipe, self._backbone.preprocessing, seed=task.item.seed, picture_id=digest
            )
            return _Views(key, views)
        except OtptError as error:
            return error

    def _encode(
        self, waiting: list[tuple[_Task, Tensor | _Views | OtptError]]
    ) -> Iterator[tuple[WorkItem, int, Tensor | OtptError]]:
        new = [found for _, found in waiting if isinstance(found, _Views)]
        encoded: Iterator[Tensor] = iter(())
        if new:
            features = self._backbone.encode_pixels(torch.cat([torch.from_numpy(each.pixels) for each in new]))
            if self._settings.features == "float16":
                features = features.half()
            encoded = iter(features.split([len(each.pixels) for each in new]))
        for task, found in waiting:
            if task.digests is not None and task.index == task.item.stop - 1:
                task.digests.save()
            if not isinstance(found, _Views):
                yield task.item, task.index, found
                continue
            features = next(encoded)
            if self._cache is not None:
                self._cache.put(found.key, features.cpu().numpy())
            yield task.item, task.index, self._placed(features)

    def _key(self, task: _Task, digest: str) -> str:
        return feature_key(self._backbone, task.recipe, task.item.seed, self._settings.features, digest)

    def _cached(self, key: str, recipe: ViewRecipe) -> Tensor | None:
        assert self._cache is not None
        features = self._cache.get(key, recipe.n_views)
        if features is None or features.shape[1] != self._backbone.embed_dim:
            return None
        return self._placed(torch.from_numpy(np.array(features)))

    def _placed(self, features: Tensor) -> Tensor:
        return features.to(device=self._backbone.device, dtype=self._backbone.dtype)


def look_ahead(work: Callable[[_In], _Out], tasks: Iterable[_In], threads: int) -> Iterator[tuple[_In, _Out]]:
    """(task, result) in order; ``threads`` are at work on the next tasks, read no further ahead than two more."""
    if threads == 0:
        for task in tasks:
            yield task, work(task)
        return
    source = iter(tasks)
    under_way: deque[tuple[_In, Future[_Out]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="otpt-features")
    try:
        while True:
            for task in islice(source, threads + 2 - len(under_way)):
                under_way.append((task, pool.submit(work, task)))
            if not under_way:
                return
            task, future = under_way.popleft()
            yield task, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
