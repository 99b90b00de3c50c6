"""An evaluation from beginning to end: make the missing shards, then the metrics."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from otpt.data import Dataset
from otpt.evaluation.config import Model
from otpt.evaluation.engines import Engine, Job, LocalEngine
from otpt.evaluation.overlap import overlaps
from otpt.evaluation.progress import Repeated, Reporter, Silent
from otpt.evaluation.settings import Settings
from otpt.features.cache import FeatureCache
from otpt.files import is_there
from otpt.runs.locks import Locks
from otpt.runs.run import CONFIG, LOCKS, SCORING, Run, Unreadable, WorkItem
from otpt.runs.scores import Average, Score, averages, score_run, write_metrics


@dataclass(frozen=True)
class Result:
    """What an evaluation found.

    Attributes:
        run: the run folder.
        scores: for each data set, seed, prompt and method of the run, also of those that were there before.
        seconds: that this call took.
        unreadable_images: (data set, id) of each image asked for that could not be read, and the reason.
    """

    run: Run
    scores: list[Score]
    seconds: float
    unreadable_images: dict[tuple[str, str], str]

    @property
    def averages(self) -> list[Average]:
        """Of each method over all data sets."""
        return averages(self.scores)

    @property
    def unreadable(self) -> int:
        """Images of all data sets that could not be read, each counted once whatever the seeds."""
        return len(self.unreadable_images)


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

    Called again with the same arguments it does only what is missing in ``out``; with further methods, prompts, seeds,
    data sets or images it adds them. With ``retry_unreadable`` it also repeats the shards that hold images which could
    not be read.
    """
    given = [datasets] if isinstance(datasets, Dataset) else list(datasets)
    settings = settings or Settings()
    for dataset in given:
        for sentence in overlaps(settings, dataset):
            warnings.warn(sentence, stacklevel=2)
    job = Job(
        backbone=lambda device: backbone,
        datasets=[partial(_as_it_is, dataset) for dataset in given],
        settings=settings,
        folder=Path(out),
        cache=cache,
    )
    return run_job(job, retry_unreadable=retry_unreadable)


def run_job(
    job: Job, engine: Engine | None = None, reporter: Reporter | None = None, *, retry_unreadable: bool = False
) -> Result:
    """Run a job by any engine and write the run's metrics."""
    started = time.monotonic()
    engine = engine or LocalEngine()
    with reporter or Silent() as report:
        failed: list[Unreadable] = []
        if is_there(job.folder / CONFIG):  # damaged shards are quarantined on the way
            failed = list(Run(job.folder).unreadable())
        run = engine.run(job, report)
        asked = job.asked()
        if retry_unreadable:  # only now, when the engine has found that it is a run of the same configuration
            for row in _among(asked, failed):
                run.remove(row.dataset, row.seed, row.column, row.index)
        run, scores, missing = _score(job.folder, asked)
        while missing:  # removed, or found damaged just now
            report(Repeated(sum(item.images for item in missing)))
            engine.run(job, report)
            run, scores, missing = _score(job.folder, asked)
    run.tidy()  # of a process that shared the work and was killed
    found = run.unreadable() if any(score.unreadable for score in scores) else ()
    unreadable = {(row.dataset, row.id): row.reason for row in _among(asked, found)}
    return Result(run, scores, time.monotonic() - started, unreadable)


def _score(folder: Path, asked: Sequence[dict[str, Any]]) -> tuple[Run, list[Score], list[WorkItem]]:
    """The run as it is now, its scores, and what it lacks of ``asked``; metrics are written if that is nothing.

    One process at a time: of several that grow a run, the last one writes the metrics of all.
    """
    with Locks(folder / LOCKS) as locks:
        locks.wait_for(SCORING)
        run = Run(folder)
        scores = score_run(run)
        missing = run.missing(asked)
        if not missing:
            write_metrics(run, scores)
    return run, scores, missing


def _among(asked: Sequence[dict[str, Any]], rows: Iterable[Unreadable]) -> Iterator[Unreadable]:
    """Those of the data sets, seeds and columns that are asked for; a run may hold those of others."""
    columns = {
        (dataset["name"], int(seed), (column["prompt"]["name"], column["method"]))
        for dataset in asked
        for column in dataset["columns"]
        for seed in column["images"]
    }
    return (row for row in rows if (row.dataset, row.seed, row.column) in columns)


def _as_it_is(dataset: Dataset) -> Dataset:
    return dataset
