"""Views of many pictures, made ahead of time by threads and handed out in order.

    for index, views in ViewLoader(paths, ViewRecipe(), backbone.preprocessing, seed=0, workers=4):
        ...

``views`` is the array of one picture, or the error of one that could not be opened: the others still come.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from otpt.errors import OtptError
from otpt.views.fast import Floats
from otpt.views.picture import MAX_PIXELS, PictureSource, open_with_digest
from otpt.views.recipe import PreprocessingLike, ViewRecipe, make_views

Views = Floats


class ViewLoader:
    """Iterate ``(index, views)`` over pictures; ``views`` is an :class:`OtptError` where a picture is bad.

    ``picture_ids`` name the pictures for their random draws; without them each is named by its content
    (:func:`picture_digest`). ``workers`` threads decode and augment (0: none, all in the calling thread); at
    most ``ahead`` pictures (default: two a worker) are ready or under way beyond the one handed out, which
    bounds the memory, and sources are read no further ahead than that. Results are the same for any number
    of workers.
    """

    def __init__(
        self,
        sources: Iterable[PictureSource],
        recipe: ViewRecipe,
        preprocessing: PreprocessingLike,
        *,
        seed: int,
        picture_ids: Iterable[str] | None = None,
        workers: int = 0,
        ahead: int | None = None,
        max_pixels: int = MAX_PIXELS,
        dtype: type[np.float32] | type[np.float64] = np.float32,
    ) -> None:
        if workers < 0:
            raise OtptError(f"The number of workers must be 0 or more, not {workers}.")
        if ahead is not None and ahead < 1:
            raise OtptError(f"The number of pictures made ahead must be 1 or more, not {ahead}.")
        self._sources = sources
        self._recipe = recipe
        self._preprocessing = preprocessing
        self._seed = seed
        self._picture_ids = picture_ids
        self._workers = workers
        self._ahead = 2 * workers if ahead is None else ahead
        self._max_pixels = max_pixels
        self._dtype = dtype

    def __iter__(self) -> Iterator[tuple[int, Views | OtptError]]:
        if self._workers == 0:
            for index, (source, name) in enumerate(self._named()):
                yield index, self._make(source, name)
            return
        waiting: deque[Future[Views | OtptError]] = deque()
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="otpt-views")
        try:
            named = self._named()
            for source, name in itertools.islice(named, self._ahead):
                waiting.append(pool.submit(self._make, source, name))
            for index in itertools.count():
                if not waiting:
                    return
                views = waiting.popleft().result()
                for source, name in itertools.islice(named, 1):
                    waiting.append(pool.submit(self._make, source, name))
                yield index, views
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _named(self) -> Iterator[tuple[PictureSource, str | None]]:
        if self._picture_ids is None:
            return ((source, None) for source in self._sources)
        return self._with_ids(self._picture_ids)

    def _with_ids(self, picture_ids: Iterable[str]) -> Iterator[tuple[PictureSource, str | None]]:
        nothing = object()
        for source, name in itertools.zip_longest(self._sources, picture_ids, fillvalue=nothing):
            if source is nothing or name is nothing:
                raise OtptError("There must be as many picture ids as pictures; one list is shorter.")
            yield source, name  # type: ignore[misc]  # neither is the filler

    def _make(self, source: PictureSource, picture_id: str | None) -> Views | OtptError:
        try:
            picture, digest = open_with_digest(source, max_pixels=self._max_pixels)
            return make_views(
                picture,
                self._recipe,
                self._preprocessing,
                seed=self._seed,
                picture_id=digest if picture_id is None else picture_id,
                dtype=self._dtype,
            )
        except OtptError as error:
            return error
