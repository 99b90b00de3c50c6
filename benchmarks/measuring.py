"""Evaluations that benchmarks make: methods on data sets in several processes, into a run folder that grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from otpt.backbones import Backbone, load_backbone
from otpt.data import Dataset
from otpt.evaluation import EvaluationSettings, ProcessEngine, Progress, Result, evaluate
from otpt.features import FeatureCache


def model_on(spec: str) -> Callable[[str], Backbone]:
    """Device → model in single precision; picklable, so that processes can be sent it."""
    return partial(load_backbone, spec)


def measure(
    model: str,
    datasets: Sequence[Callable[[], Dataset]],
    settings: EvaluationSettings,
    folder: Path,
    workers: int,
    cache: FeatureCache | None = None,
) -> Result:
    """All methods on all sets, in so many processes."""
    progress = Progress(log=partial(print, flush=True), seconds=10.0)
    given = [make() for make in datasets]
    engine = ProcessEngine(workers)
    return evaluate(
        given, model_on(model), settings, out=folder, cache=cache, engine=engine, progress=progress, device="cpu"
    )
