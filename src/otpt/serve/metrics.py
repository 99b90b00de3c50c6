"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from otpt.methods import field_names, published_names

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 11))
GIVEN = "(in the request)"
"""The class list of labels that came with a request: one name for all of them, or each would be a series."""
OTHER = "(composed)"
"""Methods without a published name."""


class Metrics:
    """Counters of one service, and of its process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        own: Any = {"registry": self.registry}
        self.requests = Counter("otpt_requests", "requests by route and status", ["route", "status"], **own)
        self.seconds = Histogram("otpt_request_seconds", "time to answer", ["route"], buckets=_SECONDS, **own)
        self.parts = Histogram(
            "otpt_part_seconds", "seconds of a request by part of the work", ["part"], buckets=_SECONDS, **own
        )
        self.images = Counter("otpt_images", "images by model and outcome", ["model", "outcome"], **own)
        self.batches = Histogram("otpt_batch_images", "images that were predicted together", buckets=_IMAGES, **own)
        self.texts = Counter("otpt_text_cache", "look-ups of class lists: hit or miss", ["outcome"], **own)
        self.confidence = Histogram(
            "otpt_confidence", "confidence of predictions", ["classes", "method"], buckets=_TENTHS, **own
        )

    def predicted(self, classes: str | None, method: str, confidence: float) -> None:
        """Count a prediction with a named class list; composed methods share one name."""
        known = method in (*published_names(), *field_names())
        self.confidence.labels(classes or GIVEN, method if known else OTHER).observe(confidence)

    def watch(self, queue: Callable[[], int], cache_bytes: Callable[[], int], cache_entries: Callable[[], int]) -> None:
        """Register numbers that are computed when they are read."""
        for name, words, ask in (
            ("otpt_queue_images", "images accepted and not yet answered", queue),
            ("otpt_text_cache_bytes", "bytes of prepared class lists in memory", cache_bytes),
            ("otpt_text_cache_entries", "prepared class lists in memory", cache_entries),
        ):
            Gauge(name, words, registry=self.registry).set_function(ask)

    def text(self) -> bytes:
        """All counters in Prometheus' format."""
        return generate_latest(self.registry)


def merge_metrics(own: CollectorRegistry, texts: Mapping[str, bytes]) -> bytes:
    """Counters of the proxy and of all replicas, those with the label ``replica``, in Prometheus' format."""
    families = {family.name: family for family in own.collect()}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)

    class Collected:
        def collect(self) -> list[Metric]:
            return list(families.values())

    registry = CollectorRegistry()
    registry.register(Collected())
    return generate_latest(registry)
