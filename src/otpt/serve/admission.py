"""Which images are accepted, and how much work of one client is done at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from otpt.serve.config import Limits
from otpt.serve.errors import busy

_ALWAYS = 8  # images accepted regardless of the estimated wait
_WEIGHT = 0.3  # of the last answer in the average time per image


class Admission:
    """Images in progress, by client.

    Attributes:
        seconds_per_image: moving average, from which the wait is estimated.
    """

    def __init__(self) -> None:
        self._images: Counter[str] = Counter()
        self.seconds_per_image = 0.1
        self._last_answer = 0.0

    @property
    def images(self) -> int:
        """Number of images in progress."""
        return self._images.total()

    @contextmanager
    def admit(self, client: str, images: int, limits: Limits) -> Iterator[None]:
        """Count images as in progress; raise 429 above the limit of the queue, or of a client's share of it."""
        of_client, total = self._images[client], self.images
        wait = total * self.seconds_per_image
        retry = max(math.ceil(wait), 1)
        if total > _ALWAYS and wait > 0.8 * limits.seconds:
            raise busy(retry, f"The {total} images in progress take longer than {limits.seconds:g} s.")
        if total + images > limits.queue:
            message = f"The queue holds {total} of at most {limits.queue} images, and {images} more were sent."
            raise busy(retry, message)
        if of_client and of_client + images > limits.share * limits.queue:
            message = f"{of_client} of your images are in progress, and the share of one client is limited."
            raise busy(retry, message)
        self._images[client] += images
        try:
            yield
        finally:
            self._images[client] -= images
            if not self._images[client]:
                del self._images[client]

    def note_answer(self, accepted: float, images: int) -> None:
        """Update the average time per image after an answer.

        Args:
            accepted: ``time.perf_counter()`` when the first image was queued.
            images: number of images in the answer.
        """
        now = time.perf_counter()
        seconds = (now - max(self._last_answer, accepted)) / images
        self.seconds_per_image += _WEIGHT * (seconds - self.seconds_per_image)
        self._last_answer = now


class Turns:
    """Limits on the concurrent work of one client, so that others do not wait for all of it."""

    def __init__(self) -> None:
        self._semaphores: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def wait(self, work: str, client: str, at_once: int) -> AsyncIterator[None]:
        """Wait until fewer than ``at_once`` works of this kind are in progress for the client."""
        key = (asyncio.get_running_loop(), work, client)
        semaphore = self._semaphores.get(key) or asyncio.Semaphore(at_once)
        self._semaphores[key] = semaphore
        async with semaphore:
            yield
