"""A request on its way through the engine: what was asked, its images, and what each of them became."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from PIL import Image

from otpt.calibration import Calibrated
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.methods import Method
from otpt.prediction import Prediction
from otpt.serve.texts import Prepared
from otpt.settings import Settings

PARTS = ("queue", "texts", "decode", "views", "encode", "predict")
"""What the seconds of a request are made of."""


@dataclass(frozen=True)
class Query:
    """What is asked of some images.

    Attributes:
        model: its name in the service.
        settings: classes, prompt, views.
        methods: one or more.
        calibrations: by the name of their method.
        seed: of the views.
        classes: the name of the class list; None where the labels came with the request.
        show_views: answer with the views themselves, too.
    """

    model: str
    settings: Settings
    methods: tuple[Method, ...]
    calibrations: Mapping[str, Calibrated] = field(default_factory=dict)
    seed: int = 0
    classes: str | None = None
    show_views: bool = False

    @cached_property
    def key(self) -> Hashable:
        """What decides the text features and everything that is prepared for all images."""
        own = self.settings
        texts = (own.classes, own.prompts, own.texts, own.templates)
        return (self.model, texts, self.methods, own.recipe, own.family, own.reject, own.reject_threshold)


@dataclass(frozen=True)
class Answer:
    """What the methods say of one image, by name; and its views as :func:`otpt.serve.thumbnails.shown_views`."""

    predictions: Mapping[str, Prediction]
    views: Mapping[str, Any] | None = None


class Job:
    """A query and its images. ``future`` gives an :class:`Answer`, or an ``OtptError``, for each of them."""

    def __init__(self, query: Query, images: list[bytes], max_pixels: int) -> None:
        self.query = query
        self.future: Future[list[Answer | OtptError]] = Future()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.units = [Unit(self, i, data, max_pixels) for i, data in enumerate(images)]
        self._answers: list[Answer | OtptError | None] = [None] * len(images)
        self._left = len(images)
        self._accepted = time.perf_counter()

    def began(self) -> None:
        """An image of it has left the queue."""
        self.seconds["queue"] = self.seconds["queue"] or time.perf_counter() - self._accepted

    def spent(self, part: str, begun: float) -> None:
        """The time from ``begun`` on went into a part of the work."""
        self.seconds[part] += time.perf_counter() - begun

    def answer(self, position: int, answer: Answer | OtptError) -> None:
        """What became of an image; called by the engine's thread alone."""
        if self._answers[position] is None:
            self._answers[position] = answer
            self._left -= 1
        if not self._left:
            with suppress(InvalidStateError):  # nobody waits for it any more
                self.future.set_result([each for each in self._answers if each is not None])

    def fail(self, error: BaseException) -> None:
        """Nothing of it can be answered."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Unit:
    """One image of a job."""

    def __init__(self, job: Job, position: int, data: bytes, max_pixels: int) -> None:
        self.job, self.position = job, position
        self.prepared: Prepared | None = None  # by the engine, once the image has left the queue
        self._open = partial(open_image, data, max_pixels=max_pixels, urls=None)

    def __str__(self) -> str:
        return f"image {self.position + 1}"

    def source(self) -> Image.Image:
        """The decoded image; called by any thread."""
        begun = time.perf_counter()
        try:
            return self._open()
        finally:
            self.job.spent("decode", begun)

    def answer(self, answer: Answer | OtptError) -> None:
        """See :meth:`Job.answer`."""
        self.job.answer(self.position, answer)
