"""An evaluation from beginning to end: make the missing parts, then the metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from otpt.data import Dataset
from otpt.evaluation.cache import FeatureCache
from otpt.evaluation.engines import Engine, Job, LocalEngine
from otpt.evaluation.files import remove_leftovers
from otpt.evaluation.progress import Reporter, Silent
from otpt.evaluation.run import CONFIG, Run
from otpt.evaluation.scoring import Average, Score, averages, score_run, write_metrics
from otpt.evaluation.settings import Model, Settings

_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """What an evaluation found.

    Attributes:
        run: the run folder.
        scores: for each data set, seed, prompt and method.
        seconds: that this call took.
        set_aside: damaged parts that were found and done again.
    """

    run: Run
    scores: list[Score]
    seconds: float
    set_aside: list[Path]

    @property
    def averages(self) -> list[Average]:
        """Of each method over all data sets."""
        return averages(self.scores)

    @property
    def unreadable(self) -> int:
        """Pictures, over all data sets and seeds, that could not be read."""
        first = {(s.dataset, s.seed): s.unreadable for s in reversed(self.scores)}
        return sum(first.values())


def evaluate(
    datasets: Dataset | Sequence[Dataset],
    backbone: Model,
    settings: Settings | None = None,
    *,
    out: str | Path,
    cache: FeatureCache | None = None,
) -> Result:
    """Evaluate a loaded backbone on loaded data sets, in this process.

    Called again with the same arguments it does only what is missing in ``out``.
    """
    given = [datasets] if isinstance(datasets, Dataset) else list(datasets)
    job = Job(
        backbone=partial(_as_it_is, backbone),
        datasets=[partial(_constant, dataset) for dataset in given],
        settings=settings or Settings(),
        folder=Path(out),
        cache=cache,
    )
    return run_job(job)


def run_job(job: Job, engine: Engine | None = None, reporter: Reporter | None = None) -> Result:
    """Run a job by any engine and write its metrics."""
    started = time.monotonic()
    engine = engine or LocalEngine()
    set_aside: list[Path] = []
    with reporter or Silent() as report:
        while True:
            if (job.folder / CONFIG).exists():
                set_aside += Run(job.folder).set_aside_corrupt()
            run = engine.run(job, report)
            scores = score_run(run)
            if not run.missing():  # a part that was found damaged just now is missing again
                break
    write_metrics(run, scores)
    remove_leftovers(run.folder)  # of a process that shared the work and was killed
    return Result(run, scores, time.monotonic() - started, set_aside)


def _as_it_is(backbone: Model, device: str) -> Model:
    return backbone


def _constant(value: _T) -> _T:
    return value
