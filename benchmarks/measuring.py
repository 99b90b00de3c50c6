"""Evaluations that benchmarks make: methods on data sets in several processes, into a run folder that grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from otpt.backbones import Backbone, load_backbone
from otpt.data import Dataset
from otpt.evaluation import Job, LogProgress, ProcessEngine, Result, Settings, run_job
from otpt.features import FeatureCache


def model_on(spec: str) -> Callable[[str], Backbone]:
    """Device → model in single precision; picklable, so that processes can be sent it."""
    return partial(load_backbone, spec)


def measure(
    model: str,
    datasets: Sequence[Callable[[], Dataset]],
    settings: Settings,
    folder: Path,
    workers: int,
    cache: FeatureCache | None = None,
) -> Result:
    """All methods on all sets, in so many processes."""
    job = Job(model_on(model), datasets, settings, folder, cache, device="cpu")
    return run_job(job, ProcessEngine(workers), LogProgress(say=partial(print, flush=True)))
