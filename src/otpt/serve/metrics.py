"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from otpt.methods import field_names, published_names
from otpt.serve.schemas import CompareAnswer

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 11))
GIVEN, OTHER = "(in the request)", "(composed)"
"""One name for all labels that come with requests, and for all methods without a published name: few series."""


class Metrics:
    """Counters of one service, and of its process.

    Attributes:
        registry: counters of requests and answers.
        of_engine: counters of the process that computes, which may be another one.
    """

    def __init__(self) -> None:
        self.registry, self.of_engine = CollectorRegistry(), CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = self._counter("otpt_requests", "requests by route and status", "route", "status")
        self.seconds = self._histogram("otpt_request_seconds", "time to answer", _SECONDS, "route")
        self.parts = self._histogram("otpt_part_seconds", "time by part of the work", _SECONDS, "part")
        self.queue = Gauge("otpt_queue_images", "images accepted and not yet answered", registry=self.registry)
        self.images = self._counter("otpt_images", "images by model and outcome", "model", "outcome")
        words = "images that were predicted together"
        self.batches = Histogram("otpt_batch_images", words, registry=self.of_engine, buckets=_IMAGES)
        words = "look-ups of class lists: hit or miss"
        self.texts = Counter("otpt_text_cache", words, ["outcome"], registry=self.of_engine)
        self.confidence = self._histogram("otpt_confidence", "confidence of predictions", _TENTHS, "classes", "method")
        self._published = {*published_names(), *field_names()}

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, help, labels, registry=self.registry, buckets=buckets)

    def count(self, classes: str | None, answer: CompareAnswer) -> None:
        """Count an answer of ``/v1/compare`` to a request with a named class list, or with labels."""
        for part, seconds in answer["seconds"].items():
            self.parts.labels(part).observe(seconds)
        for result in answer["results"]:
            self.images.labels(answer["model"], "failed" if "error" in result else "answered").inc()
            if "methods" not in result:
                continue
            for name, prediction in result["methods"].items():
                method = name if name in self._published else OTHER
                self.confidence.labels(classes or GIVEN, method).observe(prediction["confidence"])
