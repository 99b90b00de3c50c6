"""What a request may cost: sizes, counts and seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from otpt.errors import OtptError

TEXT_CACHE = 2 << 30
"""Bytes of prepared class lists that a service keeps by default: as much as one class list may take."""


@dataclass(frozen=True)
class Limits:
    """Limits of one service.

    Attributes:
        body: bytes of a request.
        memory: bytes of all requests that are under way together.
        pixels: of an image, which are counted before it is decoded.
        images: per request.
        labels: per request.
        label_length: characters of a label or a template.
        templates: per request.
        methods: per request of ``/v1/compare``.
        views: per image.
        queue: images that are accepted and not yet answered; beyond that requests get 429.
        arrival: seconds for a client to send its request.
        seconds: from the whole request to its answer.
    """

    body: int = 16 << 20
    memory: int = 512 << 20
    pixels: int = 50_000_000
    images: int = 16
    labels: int = 2000
    label_length: int = 200
    templates: int = 100
    methods: int = 8
    views: int = 64
    queue: int = 128
    arrival: float = 30.0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise OtptError(f"The limit of {each.name} is {value}; expected a number above 0.")
        if self.labels < 2:
            raise OtptError(f"The limit of labels is {self.labels}; expected 2 or more, which a classifier needs.")
        if self.memory < self.body:
            raise OtptError(
                f"The limit of memory, {self.memory:,} bytes, is below that of a body, {self.body:,}; raise it."
            )
