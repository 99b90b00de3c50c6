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
from otpt.evaluation.progress import Again, Reporter, Silent
from otpt.evaluation.run import CONFIG, Run, WorkItem
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
        unreadable_pictures: (data set, id) of each picture that could not be read, and the reason.
    """

    run: Run
    scores: list[Score]
    seconds: float
    unreadable_pictures: dict[tuple[str, str], str]

    @property
    def averages(self) -> list[Average]:
        """Of each method over all data sets."""
        return averages(self.scores)

    @property
    def unreadable(self) -> int:
        """Pictures of all data sets that could not be read, each counted once whatever the seeds."""
        return len(self.unreadable_pictures)


def evaluate(
    datasets: Dataset | Sequence[Dataset],
    backbone: Model,
    settings: Settings | None = None,
    *,
    out: str | Path,
    cache: FeatureCache | None = None,
    retry_unreadable: bool = False,
) -> Result:
    """Evaluate a loaded backbone on loaded data sets, in this process.

    Called again with the same arguments it does only what is missing in ``out``; with ``retry_unreadable`` also the
    parts that hold pictures which could not be read.
    """
    given = [datasets] if isinstance(datasets, Dataset) else list(datasets)
    job = Job(
        backbone=partial(_as_it_is, backbone),
        datasets=[partial(_constant, dataset) for dataset in given],
        settings=settings or Settings(),
        folder=Path(out),
        cache=cache,
    )
    return run_job(job, retry_unreadable=retry_unreadable)


def run_job(
    job: Job, engine: Engine | None = None, reporter: Reporter | None = None, *, retry_unreadable: bool = False
) -> Result:
    """Run a job by any engine and write its metrics."""
    started = time.monotonic()
    engine = engine or LocalEngine()
    with reporter or Silent() as report:
        failed: list[WorkItem] = []
        if (job.folder / CONFIG).exists():
            # damaged parts are set aside on the way
            failed = [item for item, _, _ in Run(job.folder).unreadable()]
        run = engine.run(job, report)
        if retry_unreadable:  # only now, when the engine has found that it is a run of the same configuration
            run.remove(failed)
        scores = score_run(run)
        while missing := run.missing():  # also what was found damaged just now
            report(Again(sum(item.stop - item.start for item in missing)))
            run = engine.run(job, report)
            scores = score_run(run)
    write_metrics(run, scores)
    remove_leftovers(run.folder)  # of a process that shared the work and was killed
    any_unreadable = any(score.unreadable for score in scores)
    found = run.unreadable() if any_unreadable else ()
    unreadable = {(str(run.datasets[item.dataset]["name"]), name): reason for item, name, reason in found}
    return Result(run, scores, time.monotonic() - started, unreadable)


def _as_it_is(backbone: Model, device: str) -> Model:
    return backbone


def _constant(value: _T) -> _T:
    return value
