"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from otpt.methods import field_names, published_names

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 11))
GIVEN, OTHER = "(in the request)", "(composed)"
"""One name for all labels that come with requests, and for all methods without a published name: few series."""


class Metrics:
    """Counters of one service, and of its process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        own: Any = {"registry": self.registry}
        self.requests = Counter("otpt_requests", "requests by route and status", ["route", "status"], **own)
        self.seconds = Histogram("otpt_request_seconds", "time to answer", ["route"], buckets=_SECONDS, **own)
        self.parts = Histogram("otpt_part_seconds", "time by part of the work", ["part"], buckets=_SECONDS, **own)
        self.queue = Gauge("otpt_queue_images", "images accepted and not yet answered", **own)
        self.images = Counter("otpt_images", "images by model and outcome", ["model", "outcome"], **own)
        self.batches = Histogram("otpt_batch_images", "images that were predicted together", buckets=_IMAGES, **own)
        self.texts = Counter("otpt_text_cache", "look-ups of class lists: hit or miss", ["outcome"], **own)
        self.confidence = Histogram(
            "otpt_confidence", "confidence of predictions", ["classes", "method"], buckets=_TENTHS, **own
        )
        self._known = {*published_names(), *field_names()}

    def count(self, classes: str | None, answer: Mapping[str, Any]) -> None:
        """Count an answer of ``/v1/compare`` to a request with a named class list, or with labels."""
        for part, seconds in answer["seconds"].items():
            self.parts.labels(part).observe(seconds)
        for result in answer["results"]:
            self.images.labels(answer["model"], "failed" if "error" in result else "answered").inc()
            for name, own in result.get("methods", {}).items():
                method = name if name in self._known else OTHER
                self.confidence.labels(classes or GIVEN, method).observe(own["confidence"])
