"""Images → image features, in order: from the cache where it has them, else views are made and encoded.

Threads look into the cache, decode and augment ahead; the image tower fills the cores meanwhile. An image that is in
the cache is neither decoded nor encoded, and not even read if its file looks as it did the last time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache, feature_key
from otpt.features.digests import ShardDigests, file_state
from otpt.images import KEYS, ImageSource, UrlLimits, open_with_digest
from otpt.transfers import to_device, to_host
from otpt.views import ViewRecipe, make_views
from otpt.views.layers import ViewLayers
from otpt.views.recipe import view_layers

_MOST_THREADS = 16

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_Views = npt.NDArray[np.floating] | ViewLayers

Opened = tuple[Image.Image, str]
"""An RGB image and the digest of its content."""


@dataclass(frozen=True)
class ImageTask:
    """An image whose features are wanted.

    Attributes:
        key: what the caller knows it by; messages call the image ``str(key)``.
        source: gives where to open it; called by any thread.
        recipes: the views that are wanted, each kind once (:attr:`ViewRecipe.kind`).
        seed: of the views.
        image_id: names the image for its random views; None: its content.
        keep_image: hand the opened image on.
        is_enough: of a recipe in rounds, whether features (n, D) of its first n views are all that is needed; called by
            the thread that asks for features.
        view_key: what the digest of its content is made of, "pixels" or "file" (:data:`otpt.images.KEYS`).
        urls: limits of sources that are addresses; None refuses them.
        digests: contents of files that were read before.
        last: whether digests are complete after this image.
    """

    key: Any
    source: Callable[[], ImageSource]
    recipes: Sequence[ViewRecipe]
    seed: int
    image_id: str | None = None
    keep_image: bool = False
    is_enough: Callable[[ViewRecipe, Tensor], bool] | None = None
    digests: ShardDigests | None = None
    last: bool = False
    view_key: str = KEYS[0]
    urls: UrlLimits | None = None

    def open(self, source: ImageSource) -> Opened:
        """Its image and digest."""
        return open_with_digest(source, key=self.view_key, urls=self.urls)


@dataclass(frozen=True)
class EncodedImage:
    """Unit features (V, D) of an image on the backbone's device, by kind of views; and how to open it again."""

    features: Mapping[str, Tensor]
    task: ImageTask
    opened: Opened | None = None

    @staticmethod
    def of_features(features: Mapping[str, Tensor], *, seed: int) -> EncodedImage:
        """An image of which only features are known."""
        return EncodedImage(features, ImageTask("features", _no_image, (), seed))

    def open(self) -> Opened:
        """The image, opened again unless it was kept."""
        return self.opened or self.task.open(self.task.source())

    @property
    def image_id(self) -> str | None:
        """What keys its random views; None: its digest."""
        return self.task.image_id


@dataclass
class _Prepared:
    """What is known of an image, by kind of views.

    Attributes:
        features: (n, D) of its first views, as the backbone's device and type have them.
        pixels: (m, 3, S, S) of the next views, which are to be encoded; or what they are put together from.
        encoded: kinds of which something was encoded, which the cache does not have.
        digest: of its content, as features and pixels have it.
        opened: the image, once it was opened.
        error: why there are no features.
    """

    features: dict[str, Tensor] = field(default_factory=dict)
    pixels: dict[str, _Views] = field(default_factory=dict)
    encoded: set[str] = field(default_factory=set)
    digest: str = ""
    opened: Opened | None = None
    error: OtptError | None = None


_Waiting = tuple[ImageTask, _Prepared]


def _no_image() -> ImageSource:
    raise OtptError("Only the features of this image are given; the method needs its pixels.")


class FeaturePipeline:
    """Features of images, in their order.

    Args:
        cache: None to encode everything.
        threads: that decode and augment; by default one per core, 16 at most. 0: none, all in the calling thread.
        features: "full", as the backbone gives them, or "float16", rounded.
        clock: called with an image's task, "views" or "encode", and the seconds that its views took, or the pass of the
            image tower that it was in; from any thread.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        features: str = "full",
        clock: Callable[[ImageTask, str, float], None] | None = None,
    ) -> None:
        if threads is not None and threads < 0:
            raise OtptError(f"The number of threads is {threads}; expected 0 or more.")
        self._backbone, self._cache, self._form = backbone, cache, features
        self._threads = min(os.cpu_count() or 1, _MOST_THREADS) if threads is None else threads
        self._clock = clock
        self._dtype: Any = np.float64 if backbone.dtype == torch.float64 else np.float32

    def __call__(self, tasks: Iterable[ImageTask]) -> Iterator[tuple[ImageTask, EncodedImage | OtptError]]:
        """(task, features, or why there are none), in order; tasks are read a few ahead."""
        at_once = self._backbone.views_at_once
        waiting: list[_Waiting] = []
        views = 0
        for task, found in look_ahead(self._prepare, tasks, self._threads):
            waiting.append((task, found))
            views += sum(len(pixels) for pixels in found.pixels.values())
            if views == 0 or views >= at_once:
                yield from self._encode(waiting)
                waiting, views = [], 0
        yield from self._encode(waiting)

    def _prepare(self, task: ImageTask) -> _Prepared:
        """What can be done without the image tower; called by any thread."""
        found = _Prepared()
        try:
            source = task.source()
            state = file_state(source)
            if task.digests is not None and not task.keep_image and (known := task.digests.find(state)) is not None:
                found.digest, found.features = known, self._cached(task, known)
                if len(found.features) == len(task.recipes):
                    return found
            found.opened = task.open(source)
            found.digest = found.opened[1]
            if task.digests is not None:
                task.digests.remember(state, found.digest)
            found.features = self._cached(task, found.digest)
            for recipe in task.recipes:
                if recipe.kind not in found.features:
                    count = min((recipe.n_views, *recipe.rounds)) if task.is_enough else recipe.n_views
                    found.pixels[recipe.kind] = self._views(task, recipe.of(count), found.opened)
        except OtptError as error:
            return _Prepared(error=error)
        return found

    def _views(self, task: ImageTask, recipe: ViewRecipe, opened: Opened, *, first: int = 0) -> _Views:
        image, digest = opened
        name = digest if task.image_id is None else task.image_id
        preprocessing, begun = self._backbone.preprocessing, time.perf_counter()
        options: dict[str, Any] = {"seed": task.seed, "image_id": name, "dtype": self._dtype, "first": first}
        views: _Views
        if self._backbone.device.type == "cpu" or recipe.noise:
            views = make_views(image, recipe, preprocessing, **options)
        else:  # put together over there, with the same bits
            views = view_layers(image, recipe, preprocessing, **options)
        self._tell([task], "views", begun)
        return views

    def _tell(self, tasks: Iterable[ImageTask], part: str, begun: float) -> None:
        if self._clock is not None:
            seconds = time.perf_counter() - begun
            for task in tasks:
                self._clock(task, part, seconds)

    def _encode(self, waiting: Sequence[_Waiting]) -> Iterator[tuple[ImageTask, EncodedImage | OtptError]]:
        self._encode_pixels(waiting)
        while more := [(*pair, recipes) for pair in waiting if (recipes := self._lacking(*pair))]:
            for _ in look_ahead(lambda each: self._next_round(*each), more, self._threads):
                pass
            self._encode_pixels(waiting)
        self._store(waiting)
        for task, found in waiting:
            if task.digests is not None and task.last:
                task.digests.save()
            opened = found.opened if task.keep_image else None
            yield task, found.error or EncodedImage(found.features, task, opened)

    def _encode_pixels(self, waiting: Sequence[_Waiting]) -> None:
        """All views that wait, of all images together."""
        pending = [(task, found) for task, found in waiting if found.pixels]
        if not pending:
            return
        begun = time.perf_counter()
        new = [pixels for _, found in pending for pixels in found.pixels.values()]
        device = self._backbone.device
        pixels = [
            each.on(device) if isinstance(each, ViewLayers) else to_device(torch.from_numpy(each), device)
            for each in new
        ]
        features = self._backbone.encode_pixels(torch.cat(pixels))
        if self._form == "float16":
            features = features.half()
        encoded = iter(features.split([len(each) for each in new]))
        for _, found in pending:
            for kind in found.pixels:
                own = self._placed(next(encoded))
                found.features[kind] = torch.cat([found.features[kind], own]) if kind in found.features else own
                found.encoded.add(kind)
            found.pixels = {}
        self._tell((task for task, _ in pending), "encode", begun)

    def _lacking(self, task: ImageTask, found: _Prepared) -> list[ViewRecipe]:
        """Recipes of which the image has too few views: neither all, nor enough."""
        if found.error is not None:
            return []
        return [
            recipe
            for recipe in task.recipes
            if len(own := found.features[recipe.kind]) < recipe.n_views
            and not (task.is_enough is not None and task.is_enough(recipe, own))
        ]

    def _next_round(self, task: ImageTask, found: _Prepared, recipes: Sequence[ViewRecipe]) -> None:
        """Makes the views of an image's next round; called by any thread. An image that is gone is an error."""
        try:
            found.opened = found.opened or task.open(task.source())
            if found.opened[1] != found.digest:
                raise OtptError("The image changed between two reads; leave its file alone and try again.")
        except OtptError as error:
            found.error = error
            return
        for recipe in recipes:
            known = len(found.features[recipe.kind])
            count = next((each for each in recipe.rounds if each > known), recipe.n_views)
            found.pixels[recipe.kind] = self._views(task, recipe.of(count), found.opened, first=known)

    def _cached(self, task: ImageTask, digest: str) -> dict[str, Tensor]:
        """Features by kind of views, where the cache has them; of a recipe in rounds as many rounds as it has."""
        found: dict[str, Tensor] = {}
        if self._cache is None or task.image_id is not None:
            return found
        for recipe in task.recipes:
            rounds = reversed(recipe.rounds) if task.is_enough is not None else ()
            for count in (recipe.n_views, *rounds):
                features = self._cache.get(self._key(task, recipe, digest), count)
                if features is not None and features.shape[1] == self._backbone.embed_dim:
                    found[recipe.kind] = self._placed(torch.from_numpy(np.array(features)))
                    break
        return found

    def _store(self, waiting: Sequence[_Waiting]) -> None:
        """Keep what was encoded, which comes to the host in one copy."""
        if self._cache is None:
            return
        new = {
            self._key(task, recipe, found.digest): found.features[recipe.kind]
            for task, found in waiting
            if task.image_id is None and found.error is None
            for recipe in task.recipes
            if recipe.kind in found.encoded
        }
        kept = (features.half() if self._form == "float16" else features for features in new.values())
        for key, features in zip(new, to_host(list(kept)), strict=True):
            self._cache.put(key, features.numpy())

    def _key(self, task: ImageTask, recipe: ViewRecipe, digest: str) -> str:
        return feature_key(self._backbone, recipe, task.seed, self._form, digest)

    def _placed(self, features: Tensor) -> Tensor:
        return to_device(features, self._backbone.device, self._backbone.dtype)


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
