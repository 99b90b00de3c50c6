"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from otpt.methods import field_names, published_names

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
        self._known = {*published_names(), *field_names()}

    def predicted(self, classes: str | None, method: str, confidence: float) -> None:
        """Count a prediction with a named class list; composed methods share one name."""
        self.confidence.labels(classes or GIVEN, method if method in self._known else OTHER).observe(confidence)


class ReplicaCollector(Collector):
    """Counters of replicas, as texts in Prometheus' format by the replica's name; with the label ``replica``."""

    def __init__(self, own: CollectorRegistry, texts: Mapping[str, bytes]) -> None:
        self._own, self._texts = own, texts

    def collect(self) -> list[Metric]:
        """All families, those of this process included."""
        families = {family.name: family for family in self._own.collect()}
        for replica, text in self._texts.items():
            for family in text_string_to_metric_families(text.decode()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        return list(families.values())
