"""Images → image features, in order: from the cache where it has them, else views are made and encoded.

Threads look into the cache, decode and augment ahead; the image tower fills the cores meanwhile. An image that is in
the cache is neither decoded nor encoded, and not even read if its file looks unchanged.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache, feature_key, file_key
from otpt.images import ImageFeatures, ImageSource, UrlLimits, open_with_digest
from otpt.transfers import to_device, to_host
from otpt.views import ViewRecipe, make_views

_MOST_THREADS = 16
_NOT_WANTED = "The result of this image is no longer needed."
_KEPT_PIXELS = 4 * 2**20
"""Pixels of an image that is kept until its further views are made; a larger one is opened again."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")

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
        keep_image: a method takes the image itself.
        predictor: what predicts it, for :func:`otpt.methods.predictor.stream`.
        urls: limits of sources that are addresses; None refuses them.
        wanted: whether its result is still needed; None: always.
        pixels: of the decoded image, for :class:`PixelBudget`; 0: not counted.
        first_pass: it is seen by methods that see all images first, and its prediction is not used.
    """

    key: Any
    source: Callable[[], ImageSource]
    recipes: Sequence[ViewRecipe]
    seed: int
    image_id: str | None = None
    keep_image: bool = False
    predictor: Any = None
    urls: UrlLimits | None = None
    wanted: Callable[[], bool] | None = None
    pixels: int = 0
    first_pass: bool = False


class PixelBudget:
    """Limits the pixels of decoded images in memory: further images wait, a larger one is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self._limit, self._used, self._change = pixels, 0, threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for this many pixels, then hold it."""
        with self._change:
            self._change.wait_for(lambda: not self._used or self._used + pixels <= self._limit)
            self._used += pixels
        try:
            yield
        finally:
            with self._change:
                self._used -= pixels
                self._change.notify_all()


@dataclass(eq=False)
class EncodedImage:
    """An image on its way to features.

    Attributes:
        features: by kind of views, unit features (n, D) of its first views on the backbone's device.
        pixels: by kind, (m, 3, S, S) of the next views, which are to be encoded.
        missing: by kind, the number of views that it should have.
        digest: of its content.
        opened: the decoded image, where it is needed again.
        error: why there are no features.
    """

    task: ImageTask
    features: dict[str, Tensor] = field(default_factory=dict)
    pixels: dict[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    opened: Opened | None = None
    error: OtptError | None = None
    new: bool = False
    """Whether something was encoded, which the cache does not have."""

    def open(self) -> Opened:
        """The image, opened again unless it was kept."""
        found = self.opened or open_with_digest(self.task.source(), urls=self.task.urls)
        if self.digest and found[1] != self.digest:
            raise OtptError("The image changed between two reads; leave its file unchanged and try again.")
        return found


class FeaturePipeline:
    """Features of images, in their order.

    Args:
        cache: None to encode everything.
        threads: that decode and augment; by default one per core, 16 at most. 0: none, all in the calling thread.
        features: "full", as the backbone gives them, or "float16", rounded.
        fixed_chunks: encode views in chunks of a fixed size, so that a view has the same bits in any batch; without,
            few views are encoded faster and agree to rounding.
        pixels: limit of decoded images in memory; None for none.
        clock: called with an image's task, "decode", "views", "encode" or "predict", and the seconds that this took
            for the image, or for the batch that it was in; from any thread.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        features: str = "full",
        fixed_chunks: bool = True,
        pixels: PixelBudget | None = None,
        clock: Callable[[ImageTask, str, float], None] | None = None,
    ) -> None:
        if threads is not None and threads < 0:
            raise OtptError(f"The number of threads is {threads}; expected 0 or more.")
        self._backbone, self._cache, self._form = backbone, cache, features
        self._threads = min(os.cpu_count() or 1, _MOST_THREADS) if threads is None else threads
        self._clock, self._pixels, self._fixed_chunks = clock, pixels, fixed_chunks
        self._dtype: Any = np.float64 if backbone.dtype == torch.float64 else np.float32

    def __call__(self, tasks: Iterable[ImageTask]) -> Iterator[tuple[ImageTask, EncodedImage | OtptError]]:
        """(task, features of all views, or why there are none), in order."""
        for batch in self.batches(tasks):
            self.store(batch)
            for image in batch:
                yield image.task, image.error or image

    def batches(self, tasks: Iterable[ImageTask], *, in_rounds: bool = False) -> Iterator[list[EncodedImage]]:
        """Encoded images, as many at a time as fill the image tower; tasks are read a few ahead.

        ``in_rounds``: of a recipe in rounds only the first one; see :meth:`encode_more`.
        """

        at_once = self._backbone.views_at_once
        waiting: list[EncodedImage] = []
        views = 0
        for coming in _look_ahead(partial(self._prepare, in_rounds=in_rounds), tasks, self._threads):
            if waiting and not self._fixed_chunks and not coming.done():  # need not wait for a large image
                self._encode(waiting)
                yield waiting
                waiting, views = [], 0
            image = coming.result()
            waiting.append(image)
            views += sum(len(pixels) for pixels in image.pixels.values())
            if views == 0 or views >= at_once:
                self._encode(waiting)
                yield waiting
                waiting, views = [], 0
        if waiting:
            self._encode(waiting)
            yield waiting

    def reopening(self, images: Sequence[EncodedImage]) -> AbstractContextManager[None]:
        """Hold the pixels of images that a method opens again."""
        again = sum(image.task.pixels for image in images if image.task.keep_image and image.opened is None)
        return nullcontext() if self._pixels is None or not again else self._pixels.hold(again)

    def encode_more(self, images: Sequence[EncodedImage]) -> None:
        """Make and encode the views that images are missing (:attr:`EncodedImage.missing`)."""
        for _ in look_ahead(self._make_missing, images, self._threads):
            pass
        self._encode(images)

    def store(self, images: Sequence[EncodedImage]) -> None:
        """Put what was encoded into the cache; it comes to the host in one copy."""
        if self._cache is not None:
            new = {
                self._key(image.task, recipe, image.digest): image.features[recipe.kind]
                for image in images
                if image.new and image.error is None and image.task.image_id is None
                for recipe in image.task.recipes
            }
            stored = [each.half() if self._form == "float16" else each for each in new.values()]
            for key, features in zip(new, to_host(stored), strict=True):
                self._cache.put(key, features.numpy())

    def _prepare(self, task: ImageTask, *, in_rounds: bool) -> EncodedImage:
        """Do what needs no image tower; called by any thread."""
        found = EncodedImage(task)
        with nullcontext() if self._pixels is None else self._pixels.hold(task.pixels):
            try:
                self._open(found, in_rounds)
            except OtptError as error:
                return EncodedImage(task, error=error)
        return found

    def _open(self, found: EncodedImage, in_rounds: bool) -> None:
        """Look into the cache, or decode the image and make its first views."""
        task = found.task
        if task.wanted is not None and not task.wanted():
            raise OtptError(_NOT_WANTED)
        source = task.source()
        if isinstance(source, ImageFeatures):
            given = to_device(torch.from_numpy(source.views), self._backbone.device, self._backbone.dtype)
            found.features = {recipe.kind: given for recipe in task.recipes}
            return
        file = None if self._cache is None else file_key(source)
        known = None if self._cache is None or file is None else self._cache.digest(file)
        if known is not None and not task.keep_image:
            found.digest, found.features = known, self._cached(task, known, in_rounds)
            if len(found.features) == len(task.recipes):
                return
        begun = time.perf_counter()
        opened = open_with_digest(source, urls=task.urls)
        self.note([task], "decode", begun)
        found.digest = opened[1]
        if self._cache is not None and file is not None and known != found.digest:
            self._cache.put_digest(file, found.digest)
        found.features = self._cached(task, found.digest, in_rounds)
        for recipe in task.recipes:
            if recipe.kind not in found.features:
                count = min((recipe.n_views, *recipe.rounds)) if in_rounds else recipe.n_views
                found.pixels[recipe.kind] = self._views(task, recipe, opened, 0, count)
        again = task.keep_image or any(recipe.rounds for recipe in task.recipes if in_rounds)
        if again and opened[0].width * opened[0].height <= _KEPT_PIXELS:
            found.opened = opened

    def _make_missing(self, image: EncodedImage) -> None:
        """Make the views that an image is missing; called by any thread."""
        try:
            opened = image.open()
            for recipe in image.task.recipes:
                if recipe.kind in image.missing:
                    count, known = image.missing[recipe.kind], len(image.features[recipe.kind])
                    image.pixels[recipe.kind] = self._views(image.task, recipe, opened, known, count)
        except OtptError as error:
            image.error = error
        image.missing = {}

    def _views(
        self, task: ImageTask, recipe: ViewRecipe, opened: Opened, first: int, last: int
    ) -> npt.NDArray[np.floating]:
        begun = time.perf_counter()
        image, digest = opened
        views = make_views(
            image,
            recipe,
            self._backbone.preprocessing,
            seed=task.seed,
            image_id=digest if task.image_id is None else task.image_id,
            dtype=self._dtype,
            first=first,
            last=last,
        )
        self.note([task], "views", begun)
        return views

    def _encode(self, images: Sequence[EncodedImage]) -> None:
        """Encode all views that wait, of all images together."""
        for image in images:
            if image.task.wanted is not None and not image.task.wanted():
                image.error = OtptError(_NOT_WANTED)
        pending = [image for image in images if image.pixels and image.error is None]
        if not pending:
            return
        begun = time.perf_counter()
        new = [torch.from_numpy(pixels) for image in pending for pixels in image.pixels.values()]
        features = self._backbone.encode_pixels(
            to_device(torch.cat(new), self._backbone.device), chunk=self._backbone.chunk if self._fixed_chunks else None
        )
        if self._form == "float16":
            features = features.half()
        encoded = iter(features.split([len(each) for each in new]))
        for image in pending:
            for kind in image.pixels:
                own = next(encoded).to(self._backbone.dtype)
                known = image.features.get(kind)
                image.features[kind] = own if known is None else torch.cat([known, own])
            image.pixels, image.new = {}, True
        self.note((image.task for image in pending), "encode", begun)

    def note(self, tasks: Iterable[ImageTask], part: str, begun: float) -> None:
        """Tell the clock how long a part of the work took."""
        if self._clock is not None:
            seconds = time.perf_counter() - begun
            for task in tasks:
                self._clock(task, part, seconds)

    def _cached(self, task: ImageTask, digest: str, in_rounds: bool) -> dict[str, Tensor]:
        """Features by kind of views, where the cache has them; of a recipe in rounds as many rounds as it has."""
        found: dict[str, Tensor] = {}
        if self._cache is None or task.image_id is not None:
            return found
        for recipe in task.recipes:
            features = self._cache.get(self._key(task, recipe, digest))
            if features is None:
                continue
            rounds = recipe.rounds if in_rounds else ()
            count = max((n for n in (*rounds, recipe.n_views) if n <= len(features)), default=0)
            if count:
                own = torch.from_numpy(np.array(features[:count]))
                found[recipe.kind] = to_device(own, self._backbone.device, self._backbone.dtype)
        return found

    def _key(self, task: ImageTask, recipe: ViewRecipe, digest: str) -> str:
        return feature_key(self._backbone, recipe, task.seed, self._form, digest)


def look_ahead(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Iterator[_Out]:
    """The results in order; ``threads`` are at work on the next items, read no further ahead than two more."""
    return (coming.result() for coming in _look_ahead(work, items, threads))


def _look_ahead(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Iterator[Future[_Out]]:
    if threads == 0:
        for item in items:
            done: Future[_Out] = Future()
            done.set_result(work(item))
            yield done
        return
    source = iter(items)
    under_way: deque[Future[_Out]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="otpt-features")
    try:
        while True:
            for item in islice(source, threads + 2 - len(under_way)):
                under_way.append(pool.submit(work, item))
            if not under_way:
                return
            yield under_way.popleft()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
