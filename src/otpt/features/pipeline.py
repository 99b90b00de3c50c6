"""Pipeline from images to image features, with a cache.

Threads query the cache, decode and augment images in advance while the image tower runs. A cached image is neither
decoded nor encoded, and not read if its file is unchanged.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, TypeVar

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
from otpt.video import Frames, as_frames, frame_fractions, is_video
from otpt.views import ViewRecipe, make_views

_MAX_THREADS = 16
_MAX_RETAINED_PIXELS = 4 * 2**20
"""Maximum number of pixels of an image that stays decoded between rounds; larger images are opened again."""

Key = TypeVar("Key")
"""Type of the caller's keys of images."""
_Key = TypeVar("_Key", covariant=True)
_In = TypeVar("_In")
_Out = TypeVar("_Out")

Opened = tuple[Image.Image, str]
"""RGB image and digest of its content."""


@dataclass(frozen=True)
class ImageTask(Generic[_Key]):
    """Image to encode.

    Attributes:
        key: the caller's key of the image; messages show ``str(key)``.
        source: thread-safe function that returns the image source.
        recipes: views to encode, at most one recipe per :attr:`ViewRecipe.kind`.
        seed: seed of the views.
        image_id: key of the random views; None for the digest of the content.
        keep_image: whether a method needs the image itself.
        urls: limits for downloads; None rejects URLs.
        wanted: function that returns whether the result is still needed; None for always.
        pixels: number of pixels counted in the :class:`PixelBudget`.
        first_pass: whether the prediction is discarded, in the first pass of methods that see all images first.
        upright: whether to apply the EXIF orientation.
    """

    key: _Key
    source: Callable[[], ImageSource]
    recipes: Sequence[ViewRecipe]
    seed: int
    image_id: str | None = None
    keep_image: bool = False
    urls: UrlLimits | None = None
    wanted: Callable[[], bool] | None = None
    pixels: int = 0
    first_pass: bool = False
    upright: bool = True

    @property
    def abandoned(self) -> OtptError | None:
        """Error if the result is no longer needed, or None."""
        gone = self.wanted is not None and not self.wanted()
        return OtptError("The result of this image is no longer needed.") if gone else None


Clock = Callable[[ImageTask[object], str, float], None]
"""Function of a task, the name of a step ("decode", "views", "encode" or "predict") and its duration in seconds."""


class PixelBudget:
    """Limit on the total number of pixels decoded concurrently; a larger image is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self._limit, self._used, self._change = pixels, 0, threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until the pixels fit the budget, and reserve them within the block."""
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
class EncodedImage(Generic[_Key]):
    """Image with its features.

    Attributes:
        task: task of the image.
        features: unit features (n, D) of the first n views on the backbone's device, by kind of views.
        pixels: next views to encode (m, 3, S, S), by kind.
        missing: number of views required, by kind.
        digest: digest of the image content.
        opened: decoded image, if it is needed again.
        error: reason for missing features, or None.
        new: whether it has features that are not in the cache.
        of_frames: whether the features are those of frames of a video, which are not cached.
    """

    task: ImageTask[_Key]
    features: dict[str, Tensor] = field(default_factory=dict)
    pixels: dict[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    opened: Opened | None = None
    error: OtptError | None = None
    new: bool = False
    of_frames: bool = False

    def open(self) -> Opened:
        """Return the decoded image and its digest, opening the image again if necessary."""
        task = self.task
        opened = self.opened or open_with_digest(task.source(), urls=task.urls, upright=task.upright)
        if self.digest and opened[1] != self.digest:
            raise OtptError("The image changed between two reads; do not modify its file, and try again.")
        return opened


class FeaturePipeline:
    """Encoder of images to features, in order.

    Args:
        backbone: backbone with the image tower.
        cache: cache of features, or None.
        threads: number of threads that decode and augment; by default one per core, at most 16; 0 uses the calling
            thread.
        features: "full" precision of the backbone, or "float16" for rounded features.
        fixed_chunks: encode views in chunks of a fixed size, which makes features bitwise independent of the batch;
            otherwise few views are encoded faster.
        pixels: limit on concurrently decoded images, or None.
        clock: called from any thread with the duration of each step of an image or its batch.
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
        clock: Clock | None = None,
    ) -> None:
        if threads is not None and threads < 0:
            raise OtptError(f"The number of threads is {threads}; expected 0 or more.")
        self._backbone, self._cache, self._form = backbone, cache, features
        self._threads = min(os.cpu_count() or 1, _MAX_THREADS) if threads is None else threads
        self._clock, self._pixels, self._fixed_chunks = clock, pixels, fixed_chunks
        in_double = backbone.dtype == torch.float64
        self._dtype: type[np.float32] | type[np.float64] = np.float64 if in_double else np.float32

    def __call__(
        self, tasks: Iterable[ImageTask[Key]]
    ) -> Iterator[tuple[ImageTask[Key], EncodedImage[Key] | OtptError]]:
        """Yield (task, encoded image or error) in order, with the features of all views."""
        whole = (replace(task, recipes=[recipe.of(recipe.n_views) for recipe in task.recipes]) for task in tasks)
        for batch in self.batches(whole):
            self.store(batch)
            for image in batch:
                yield image.task, image.error or image

    def batches(self, tasks: Iterable[ImageTask[Key]]) -> Iterator[list[EncodedImage[Key]]]:
        """Yield encoded images in batches of about :attr:`Backbone.views_at_once` views; tasks are read lazily.

        For a recipe with rounds, only the first round is encoded; see :meth:`encode_more`.
        """
        waiting: list[EncodedImage[Key]] = []
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

    def reopening(self, images: Sequence[EncodedImage[Key]]) -> AbstractContextManager[None]:
        """Return a context manager that reserves the pixel budget of images that a method opens again."""
        again = sum(image.task.pixels for image in images if image.task.keep_image and image.opened is None)
        return nullcontext() if self._pixels is None or not again else self._pixels.hold(again)

    def encode_more(self, images: list[EncodedImage[Key]]) -> None:
        """Compute and encode the views in :attr:`EncodedImage.missing`."""
        for future in look_ahead(self._make_missing, images, self._threads):
            future.result()
        self._encode(images)

    def store(self, images: Sequence[EncodedImage[Key]]) -> None:
        """Write new features to the cache, with a single copy to the host."""
        if self._cache is None:
            return
        new = {
            self._key(image.task, recipe, image.digest): image.features[recipe.kind]
            for image in images
            if image.new and image.error is None and image.task.image_id is None
            for recipe in image.task.recipes
        }
        stored = [tensor.half() if self._form == "float16" else tensor for tensor in new.values()]
        for key, features in zip(new, to_host(stored), strict=True):
            self._cache.put(key, features.numpy())

    def _prepare(self, task: ImageTask[Key]) -> EncodedImage[Key]:
        """Read the features from the cache, or decode the image and compute its first views; thread-safe."""
        image = EncodedImage(task)
        with nullcontext() if self._pixels is None else self._pixels.hold(task.pixels):
            try:
                self._open(image)
            except OtptError as error:
                image.error = error
        return image

    def _open(self, image: EncodedImage[Key]) -> None:
        task, cache = image.task, self._cache
        if error := task.abandoned:
            raise error
        source = task.source()
        if isinstance(source, ImageFeatures):
            features = to_device(torch.from_numpy(source.views), self._backbone.device, self._backbone.dtype)
            image.features = {recipe.kind: features for recipe in task.recipes}
            return
        file = None if cache is None or is_video(source) else file_key(source, upright=task.upright)
        digest = None if cache is None or file is None else cache.digest(file)
        if digest is not None and not task.keep_image:
            image.digest, image.features = digest, self._cached(task, digest)
            if len(image.features) == len(task.recipes):
                return
        frames = as_frames(source)
        if frames is not None:
            self._open_frames(image, frames)
            return
        begun = time.perf_counter()
        image.opened = opened, image.digest = open_with_digest(source, urls=task.urls, upright=task.upright)
        self.note([task], "decode", begun)
        if cache is not None and file is not None and digest != image.digest:
            cache.put_digest(file, image.digest)
        image.features = self._cached(task, image.digest)
        uncached = [recipe for recipe in task.recipes if recipe.kind not in image.features]
        image.missing = {recipe.kind: min((recipe.n_views, *recipe.rounds)) for recipe in uncached}
        self._make_missing(image)
        again = task.keep_image or any(recipe.rounds for recipe in task.recipes)
        if not again or opened.width * opened.height > _MAX_RETAINED_PIXELS:
            image.opened = None

    def _open_frames(self, image: EncodedImage[Key], frames: Frames) -> None:
        """Take the frames of a video as views; they are not cached."""
        task = image.task
        if task.keep_image:
            raise OtptError(
                f"{frames.name!r} has frames instead of views, but a method makes its own views of an image; choose "
                "one that takes any views, such as 'confident-half', or predict the frames one by one."
            )
        begun = time.perf_counter()
        count = max(recipe.n_views for recipe in task.recipes)
        size = self._backbone.preprocessing.size
        pixels = np.empty((count, 3, size, size), self._dtype)
        digest = hashlib.sha256()
        for position, frame in frames.at(frame_fractions(count), task.urls):
            digest.update(b"%d %d %d\n" % (position, *frame.size) + frame.tobytes())
            clean = ViewRecipe(n_views=1)
            (pixels[position],) = make_views(
                frame, clean, self._backbone.preprocessing, seed=0, image_id="", dtype=self._dtype
            )
        image.digest, image.of_frames = digest.hexdigest()[:32], True
        image.pixels = {recipe.kind: pixels[: recipe.n_views] for recipe in task.recipes}
        self.note([task], "views", begun)

    def _make_missing(self, image: EncodedImage[Key]) -> None:
        """Compute the views in :attr:`EncodedImage.missing`; thread-safe."""
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

    def _encode(self, images: list[EncodedImage[Key]]) -> list[EncodedImage[Key]]:
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
        encoded = iter(features.split([len(views) for views in new]))
        for image in pending:
            for kind in image.pixels:
                added = next(encoded).to(self._backbone.dtype)
                before = image.features.get(kind)
                image.features[kind] = added if before is None else torch.cat([before, added])
            image.pixels, image.new = {}, not image.of_frames
        self.note((image.task for image in pending), "encode", begun)
        return images

    def note(self, tasks: Iterable[ImageTask[Key]], part: str, begun: float) -> None:
        """Report the time since ``begun`` to the clock."""
        if self._clock is not None:
            seconds = time.perf_counter() - begun
            for task in tasks:
                self._clock(task, part, seconds)

    def _cached(self, task: ImageTask[Key], digest: str) -> dict[str, Tensor]:
        """Return the cached features by kind of views; for a recipe with rounds, of all cached rounds."""
        cached: dict[str, Tensor] = {}
        if self._cache is None or task.image_id is not None:
            return cached
        for recipe in task.recipes:
            features = self._cache.get(self._key(task, recipe, digest))
            stored = 0 if features is None else len(features)
            count = max((n for n in (*recipe.rounds, recipe.n_views) if n <= stored), default=0)
            if features is not None and count:
                tensor = torch.from_numpy(np.array(features[:count]))
                cached[recipe.kind] = to_device(tensor, self._backbone.device, self._backbone.dtype)
        return cached

    def _key(self, task: ImageTask[Key], recipe: ViewRecipe, digest: str) -> str:
        return feature_key(self._backbone, recipe, task.seed, self._form, digest)


def look_ahead(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Iterator[Future[_Out]]:
    """Yield the futures of ``work(item)`` in order, while threads process up to ``threads`` + 2 further items."""
    if threads == 0:
        for item in items:
            done: Future[_Out] = Future()
            done.set_result(work(item))
            yield done
        return
    source = iter(items)
    pending: deque[Future[_Out]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="otpt-features")
    try:
        while True:
            for item in islice(source, threads + 2 - len(pending)):
                pending.append(pool.submit(work, item))
            if not pending:
                return
            yield pending.popleft()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def embed(
    backbone: Backbone,
    images: Iterable[object],
    views: int | ViewRecipe = 1,
    *,
    seed: int = 0,
    workers: int | None = None,
    urls: UrlLimits | None = LIMITS,
    upright: bool = True,
) -> Iterator[npt.NDArray[np.floating] | OtptError]:
    """Yield unit features (D,) of images in order, or the error of an unusable image.

    Features of several views are averaged and normalised.
    """
    recipe = views if isinstance(views, ViewRecipe) else ViewRecipe(n_views=views)
    tasks = (
        ImageTask(image.shown, image.source, [recipe], seed, image.image_id, urls=urls, upright=upright)
        for image in image_inputs(images)
    )
    for _, encoded in FeaturePipeline(backbone, threads=workers)(tasks):
        if isinstance(encoded, OtptError):
            yield encoded
            continue
        features = encoded.features[recipe.kind]
        mean = features[0] if len(features) == 1 else features.mean(dim=0)
        yield (mean / mean.norm() if len(features) > 1 else mean).cpu().numpy()
