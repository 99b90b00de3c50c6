"""Images → image features, in order: from the cache, or by making and encoding views.

Threads query the cache, decode and augment ahead while the image tower fills the cores. A cached image is neither
decoded nor encoded, and not even read if its file looks unchanged.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
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
from otpt.features.inputs import image_inputs
from otpt.images import LIMITS, ImageFeatures, ImageSource, UrlLimits, open_with_digest
from otpt.transfers import to_device, to_host
from otpt.views import ViewRecipe, make_views

_MOST_THREADS = 16
_KEPT_PIXELS = 4 * 2**20
"""Largest image that stays decoded until its further views are made; a larger one is opened again."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")

Opened = tuple[Image.Image, str]
"""An RGB image and the digest of its content."""


@dataclass(frozen=True)
class ImageTask:
    """An image to encode.

    Attributes:
        key: the caller's name of the image; messages show ``str(key)``.
        source: returns what to open; called by any thread.
        recipes: the views to encode, each kind once (:attr:`ViewRecipe.kind`).
        seed: of the views.
        image_id: keys the random views; None for the digest of the content.
        keep_image: a method needs the image itself.
        predictor: predicts the image in :func:`otpt.methods.predictor.stream`.
        urls: limits of downloads; None refuses URLs.
        wanted: returns whether the result is still needed; None for always.
        pixels: of the decoded image, for :class:`PixelBudget`; 0 if not counted.
        first_pass: only for methods that see all images first; its prediction is not used.
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

    @property
    def abandoned(self) -> OtptError | None:
        """The error if the result is no longer needed."""
        gone = self.wanted is not None and not self.wanted()
        return OtptError("The result of this image is no longer needed.") if gone else None


class PixelBudget:
    """Bound of the pixels of decoded images in memory; an image beyond the bound is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self._limit, self._used, self._change = pixels, 0, threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait for this part of the budget, then hold it."""
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
    """An image and its features.

    Attributes:
        features: by kind of views, unit features (n, D) of the first views, on the backbone's device.
        pixels: by kind, (m, 3, S, S) of the next views to encode.
        missing: by kind, the number of views required.
        digest: of the image's content.
        opened: the decoded image, if it is needed again.
        error: the reason why there are no features.
        new: whether it has features that the cache lacks.
    """

    task: ImageTask
    features: dict[str, Tensor] = field(default_factory=dict)
    pixels: dict[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    opened: Opened | None = None
    error: OtptError | None = None
    new: bool = False

    def open(self) -> Opened:
        """Return the decoded image; open it again if necessary."""
        found = self.opened or open_with_digest(self.task.source(), urls=self.task.urls)
        if self.digest and found[1] != self.digest:
            raise OtptError("The image changed between two reads; leave its file unchanged and try again.")
        return found


class FeaturePipeline:
    """Features of images, in order.

    Args:
        cache: None to encode everything.
        threads: number of threads that decode and augment; by default one per core, 16 at most; 0 for the calling
            thread alone.
        features: "full" precision of the backbone, or rounded to "float16".
        fixed_chunks: encode views in chunks of a fixed size, so that a view has the same bits in any batch; otherwise
            few views are encoded faster and agree to rounding.
        pixels: bound of decoded images in memory; None for no bound.
        clock: called from any thread with a task, "decode", "views", "encode" or "predict", and the seconds it took
            for the image or its batch.
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
        """Yield (task, the features of all its views or the error), in order."""
        whole = (replace(task, recipes=[each.of(each.n_views) for each in task.recipes]) for task in tasks)
        for batch in self.batches(whole):
            self.store(batch)
            for image in batch:
                yield image.task, image.error or image

    def batches(self, tasks: Iterable[ImageTask]) -> Iterator[list[EncodedImage]]:
        """Yield encoded images in batches that fill the image tower; tasks are read a few ahead.

        Of a recipe in rounds only the first round is encoded; see :meth:`encode_more`.
        """
        waiting: list[EncodedImage] = []
        views = 0
        for coming in look_ahead(self._prepare, tasks, self._threads):
            if waiting and not self._fixed_chunks and not coming.done():  # do not wait for a large image
                yield self._encode(waiting)
                waiting, views = [], 0
            image = coming.result()
            waiting.append(image)
            views += sum(len(pixels) for pixels in image.pixels.values())
            if views == 0 or views >= self._backbone.views_at_once:
                yield self._encode(waiting)
                waiting, views = [], 0
        if waiting:
            yield self._encode(waiting)

    def reopening(self, images: Sequence[EncodedImage]) -> AbstractContextManager[None]:
        """Hold the pixel budget of images that a method opens again."""
        again = sum(image.task.pixels for image in images if image.task.keep_image and image.opened is None)
        return nullcontext() if self._pixels is None or not again else self._pixels.hold(again)

    def encode_more(self, images: list[EncodedImage]) -> None:
        """Make and encode the views in :attr:`EncodedImage.missing`."""
        for made in look_ahead(self._make_missing, images, self._threads):
            made.result()
        self._encode(images)

    def store(self, images: Sequence[EncodedImage]) -> None:
        """Write new features to the cache, after one copy to the host."""
        if self._cache is None:
            return
        new = {
            self._key(image.task, recipe, image.digest): image.features[recipe.kind]
            for image in images
            if image.new and image.error is None and image.task.image_id is None
            for recipe in image.task.recipes
        }
        stored = [each.half() if self._form == "float16" else each for each in new.values()]
        for key, features in zip(new, to_host(stored), strict=True):
            self._cache.put(key, features.numpy())

    def _prepare(self, task: ImageTask) -> EncodedImage:
        """Query the cache, or decode the image and make its first views; called by any thread."""
        image = EncodedImage(task)
        with nullcontext() if self._pixels is None else self._pixels.hold(task.pixels):
            try:
                self._open(image)
            except OtptError as error:
                image.error = error
        return image

    def _open(self, image: EncodedImage) -> None:
        task, cache = image.task, self._cache
        if error := task.abandoned:
            raise error
        source = task.source()
        if isinstance(source, ImageFeatures):
            given = to_device(torch.from_numpy(source.views), self._backbone.device, self._backbone.dtype)
            image.features = {recipe.kind: given for recipe in task.recipes}
            return
        file = None if cache is None else file_key(source)
        known = None if cache is None or file is None else cache.digest(file)
        if known is not None and not task.keep_image:
            image.digest, image.features = known, self._cached(task, known)
            if len(image.features) == len(task.recipes):
                return
        begun = time.perf_counter()
        image.opened = opened, image.digest = open_with_digest(source, urls=task.urls)
        self.note([task], "decode", begun)
        if cache is not None and file is not None and known != image.digest:
            cache.put_digest(file, image.digest)
        image.features = self._cached(task, image.digest)
        unknown = [recipe for recipe in task.recipes if recipe.kind not in image.features]
        image.missing = {recipe.kind: min((recipe.n_views, *recipe.rounds)) for recipe in unknown}
        self._make_missing(image)
        again = task.keep_image or any(recipe.rounds for recipe in task.recipes)
        if not again or opened.width * opened.height > _KEPT_PIXELS:
            image.opened = None

    def _make_missing(self, image: EncodedImage) -> None:
        """Make the views in :attr:`EncodedImage.missing`; called by any thread."""
        task = image.task
        try:
            opened, digest = image.open()
            for recipe in task.recipes:
                if recipe.kind in image.missing:
                    begun = time.perf_counter()
                    image.pixels[recipe.kind] = make_views(
                        opened,
                        recipe,
                        self._backbone.preprocessing,
                        seed=task.seed,
                        image_id=digest if task.image_id is None else task.image_id,
                        dtype=self._dtype,
                        first=len(image.features.get(recipe.kind, ())),
                        last=image.missing[recipe.kind],
                    )
                    self.note([task], "views", begun)
        except OtptError as error:
            image.error = error
        image.missing = {}

    def _encode(self, images: list[EncodedImage]) -> list[EncodedImage]:
        """Encode the pixels of all images together, in place."""
        for image in images:
            image.error = image.error or image.task.abandoned
        pending = [image for image in images if image.pixels and image.error is None]
        if not pending:
            return images
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
        return images

    def note(self, tasks: Iterable[ImageTask], part: str, begun: float) -> None:
        """Report the time since ``begun`` to the clock."""
        if self._clock is not None:
            seconds = time.perf_counter() - begun
            for task in tasks:
                self._clock(task, part, seconds)

    def _cached(self, task: ImageTask, digest: str) -> dict[str, Tensor]:
        """Cached features by kind of views; of a recipe in rounds, all cached rounds."""
        found: dict[str, Tensor] = {}
        if self._cache is None or task.image_id is not None:
            return found
        for recipe in task.recipes:
            features = self._cache.get(self._key(task, recipe, digest))
            stored = 0 if features is None else len(features)
            count = max((n for n in (*recipe.rounds, recipe.n_views) if n <= stored), default=0)
            if features is not None and count:
                own = torch.from_numpy(np.array(features[:count]))
                found[recipe.kind] = to_device(own, self._backbone.device, self._backbone.dtype)
        return found

    def _key(self, task: ImageTask, recipe: ViewRecipe, digest: str) -> str:
        return feature_key(self._backbone, recipe, task.seed, self._form, digest)


def look_ahead(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Iterator[Future[_Out]]:
    """Yield the results in order; threads work on the next items, at most ``threads`` + 2 of them."""
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


def embed(
    backbone: Backbone,
    images: Iterable[Any],
    views: int | ViewRecipe = 1,
    *,
    seed: int = 0,
    workers: int | None = None,
    urls: UrlLimits | None = LIMITS,
) -> Iterator[npt.NDArray[np.floating] | OtptError]:
    """Yield unit features (D,) of images, in order; the error of a bad image instead.

    The unit features of several views are averaged and normalised.
    """
    recipe = views if isinstance(views, ViewRecipe) else ViewRecipe(n_views=views)
    tasks = (
        ImageTask(each.shown, each.source, [recipe], seed, each.image_id, urls=urls) for each in image_inputs(images)
    )
    for _, found in FeaturePipeline(backbone, threads=workers)(tasks):
        if isinstance(found, OtptError):
            yield found
            continue
        features = found.features[recipe.kind]
        mean = features[0] if len(features) == 1 else features.mean(dim=0)
        yield (mean / mean.norm() if len(features) > 1 else mean).cpu().numpy()
