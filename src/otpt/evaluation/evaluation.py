"""Evaluations: compute missing shards in one or several processes, then the metrics."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import cast

import pandas as pd
from filelock import FileLock
from pydantic import Field, field_validator

from otpt.arguments import checked
from otpt.backbones import Backbone, FeatureBackbone, as_backbone, is_backbone, load_backbone
from otpt.data import Dataset, FeatureDataset, as_dataset, load_dataset, stratified
from otpt.data.sources import Source
from otpt.errors import OtptError
from otpt.evaluation.evaluator import Evaluator, dataset_configs, run_config
from otpt.evaluation.request import Evaluation, each_once, overlaps
from otpt.features.cache import FeatureCache
from otpt.files import is_there
from otpt.methods import Task
from otpt.progress import LOADING, Progress, as_progress, duration
from otpt.records import Frozen, sort_keywords
from otpt.runs import CONFIG, DatasetConfig, Run, RunConfig, WorkItem, short_table, write_metrics
from otpt.runs.run import locked
from otpt.workers import Facts, InlinePool, PluginFiles, Pool, get_pool

_POLL_SECONDS = 1.0
_VISIBLE_SECONDS = 90.0  # network file systems may hide a new file from other machines for a minute


@dataclass(frozen=True, repr=False)
class Result:
    """Result of an evaluation.

    Attributes:
        run: the run folder.
        frame: metrics of each data set, seed, prompt and method of the run, earlier ones included; see
            :func:`otpt.runs.results_frame`.
        seconds: duration of this call.
        unreadable_images: (data set, id) of each requested image that could not be read, and the reason.
    """

    run: Run
    frame: pd.DataFrame
    seconds: float
    unreadable_images: dict[tuple[str, str], str]

    @property
    def unreadable(self) -> int:
        """Number of images that could not be read, each counted once for all seeds."""
        return len(self.unreadable_images)

    def __repr__(self) -> str:
        return f"{self.run!r} in {duration(self.seconds)}\n{short_table(self.frame).to_string(index=False)}"

    def _repr_html_(self) -> str:
        table = short_table(self.frame).to_html(index=False)
        return f"<p>{escape(repr(self.run))} in {duration(self.seconds)}</p>{table}"


@dataclass(frozen=True)
class EvaluationJob:
    """Evaluation that can be started by any process; a :class:`otpt.workers.Job` whose items are work items.

    Attributes:
        plugins: files with a user's functions, loaded in each process; first, because the methods need them.
        backbone: a model, the name of one, or a function of a device that loads one.
        datasets: in the order in which they are evaluated (see :func:`stratified`).
        requested: the data sets and columns to compute, as in the run's configuration.
        threads: number of threads that decode and augment, in each process.
        command: the command line, for the record.
        on_image: called after each image that is computed in this process.
    """

    plugins: PluginFiles
    backbone: object
    datasets: Sequence[Dataset]
    requested: Sequence[DatasetConfig]
    evaluation: Evaluation
    folder: Path
    cache: FeatureCache | None = None
    device: str = "auto"
    threads: int | None = None
    command: str | None = None
    on_image: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "folder": self.folder.absolute(), "on_image": None}

    def make_worker(self, device: str, threads: int | None) -> ShardWorker:
        """Load the model on a device, and check that it fits the evaluation."""
        return ShardWorker(self, self._load(device), threads)

    def _load(self, device: str) -> Backbone:
        model = self.backbone
        if isinstance(model, (str, Path)):
            return load_backbone(model, device=device)
        if not hasattr(model, "fingerprint"):
            if not callable(model):
                raise OtptError(
                    f"The model is {model!r:.80}; expected a loaded backbone, a name such as 'ViT-B-16/openai', or a "
                    "function of a device that loads one."
                )
            model = model(device)
        only_features = hasattr(model, "fingerprint") and not is_backbone(model)
        return cast(Backbone, model) if only_features else as_backbone(model)


class ShardWorker:
    """Model and data sets in one process; computes work items and stores their shards in the run folder."""

    def __init__(self, job: EvaluationJob, backbone: Backbone, threads: int | None) -> None:
        self._folder = job.folder
        self._evaluator = Evaluator(
            backbone, job.datasets, job.evaluation, cache=job.cache, threads=threads, on_image=job.on_image
        )
        self._config = run_config(backbone, job.requested, job.evaluation, command=job.command)

    def facts(self) -> Facts:
        """Return the configuration of the run; the machine that computes decides it."""
        return self._config.model_dump(mode="json")

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[WorkItem]:
        """Compute and store items, and yield each that is finished; those locked by other processes are left out."""
        run = self._run
        locks: dict[WorkItem, FileLock] = {}

        def claimed() -> Iterator[WorkItem]:
            for item in items:
                lock = run.lock(item)
                if lock is not None:
                    locks[item] = lock
                    yield item

        for item, shards in self._evaluator(claimed()):
            for shard in shards:
                run.write(shard)
            if shards[0].stop == item.stop:
                run.unlock(locks.pop(item))
                yield item

    @cached_property
    def _run(self) -> Run:
        """The run, which this machine must be able to see and to extend."""
        until = time.monotonic() + _VISIBLE_SECONDS
        while not is_there(self._folder / CONFIG):
            if time.monotonic() > until:
                raise OtptError(
                    f"The machine {platform.node()!r} does not see the run folder {str(self._folder)!r}; put it on "
                    "storage that all machines share, under the same path."
                )
            time.sleep(_POLL_SECONDS)
        return Run.create(self._folder, self._config)


def compute(job: EvaluationJob, pool: Pool, progress: Progress) -> None:
    """Compute all missing shards of a job, or wait for other commands that do."""
    with progress.waiting(LOADING):
        run = Run.create(job.folder, RunConfig.model_validate(pool.facts(job)))
    finished, total = run.progress(job.requested)
    progress.start(finished, total)
    stored: set[WorkItem] = set()
    until = 0.0
    while missing := run.missing(job.requested):
        if not stored.isdisjoint(missing):
            if time.monotonic() > until:
                raise OtptError(
                    f"Shards of workers are not visible in {str(job.folder)!r} here; put the run folder on storage "
                    "that all machines share, under the same path."
                )
            time.sleep(_POLL_SECONDS)
            continue
        before = len(stored)
        for item in pool.map(job, missing, ordered=False):
            stored.add(item)
            finished += item.images
            progress.update(max(finished, progress.done))  # this process may have counted single images
        until = time.monotonic() + _VISIBLE_SECONDS
        if len(stored) == before:  # other commands work on all that is left
            time.sleep(_POLL_SECONDS)
    progress.update(total)


class Execution(Frozen):
    """How an evaluation is computed; nothing here changes a row."""

    cache: FeatureCache | None = Field(None, description="cache of image features and of gradients at the init")
    pool: Pool | None = Field(
        None, description="processes or machines to compute on, or the name of a pool; None computes in this process"
    )
    progress: Progress | None = Field(
        None, description="True, False, or how progress is shown; by default a bar on a terminal or in a notebook"
    )
    device: str = Field("auto", description="device on which the model is loaded, unless it is loaded already")
    threads: int | None = Field(None, ge=0, description="number of threads that decode and augment, in each process")
    plugins: tuple[Path, ...] = Field((), description="files with a user's functions that worker processes load")
    command: str | None = Field(None, description="command line, recorded in the run")
    retry_unreadable: bool = Field(False, description="compute shards with images that could not be read again")

    @field_validator("progress", mode="before")
    @classmethod
    def _read_progress(cls, value: object) -> Progress:
        return as_progress(value)

    @field_validator("pool", mode="before")
    @classmethod
    def _find_pool(cls, value: object) -> object:
        return get_pool(value) if isinstance(value, str) else value


@checked
def evaluate(
    datasets: object,
    backbone: object,
    evaluation: Evaluation | None = None,
    *,
    out: str | Path,
    execution: Execution | None = None,
    **fields: object,
) -> Result:
    """Evaluate a model on data sets.

    Called again with the same arguments it computes only missing rows of ``out``; with further methods, prompts,
    seeds, data sets or images it adds them.

    Args:
        datasets: one or several: the name or path of a data set as in :func:`otpt.data.load_dataset`, a
            :class:`otpt.data.Dataset`, torchvision's ``ImageFolder``, a data set of the ``datasets`` library, a
            ``DataLoader``, or any sequence of (image, label) with ``classes``.
        backbone: a loaded model, the name of one, or a function of a device that loads one; None for features of
            images and texts (:mod:`otpt.data.features`).
        evaluation: methods, seeds, views and so on; or give them as keywords, ``methods=["zero-shot", "tpt"]``.
        out: the run folder.
        execution: cache, device, processes and so on; or give them as keywords, ``device="cuda"``.
        fields: fields of :class:`Evaluation`, :class:`~otpt.Protocol` and :class:`~otpt.Decision` in place of
            ``evaluation``, and fields of :class:`Execution`.

    Example:
        >>> from tempfile import mkdtemp
        >>> result = evaluate("emoji/food", "pocket", out=mkdtemp(), methods=["zero-shot"], limit=4, device="cpu")
        >>> list(result.frame["method"])
        ['zero-shot']
    """
    started = time.monotonic()
    evaluation, execution = _read_records(evaluation, execution, fields)
    loaded = _load_datasets(datasets)
    evaluation = evaluation.for_datasets(loaded)
    for dataset in loaded:
        for sentence in overlaps(evaluation, dataset):
            warnings.warn(sentence, stacklevel=3)  # 2 is the check of the arguments
    variants = [variant for dataset in loaded for variant in evaluation.variants(dataset)]
    shown = as_progress(execution.progress)
    job = EvaluationJob(
        plugins=PluginFiles(execution.plugins),
        backbone=_of_features(loaded) if backbone is None else backbone,
        datasets=variants,
        requested=dataset_configs(variants, evaluation),
        evaluation=evaluation,
        folder=Path(out),
        cache=execution.cache,
        device=execution.device,
        threads=execution.threads,
        command=execution.command,
        on_image=lambda: shown.update(shown.done + 1),
    )
    if is_there(job.folder / CONFIG):
        run = Run(job.folder)
        run.remove_damaged()
        for name, seed, column, row in list(run.unreadable(job.requested)) if execution.retry_unreadable else ():
            run.remove(name, seed, column, row["index"])
    with shown, execution.pool or InlinePool() as pool:  # workers end here; a pool may be used again
        compute(job, pool, shown)
    with locked(job.folder, "metrics"):  # of several processes that extend a run, the last one writes the metrics
        run = Run(job.folder)
        run.tidy()
        frame = write_metrics(run)
    failed = run.unreadable(job.requested) if frame["unreadable"].any() else ()
    unreadable = {(name, row["id"]): row["error"] for name, _, _, row in failed}
    return Result(run, frame, time.monotonic() - started, unreadable)


def _read_records(
    evaluation: Evaluation | None, execution: Execution | None, fields: Mapping[str, object]
) -> tuple[Evaluation, Execution]:
    """Return the records from keywords; each may be given whole."""
    of_task = {name: value for name, value in fields.items() if name in Task.keywords()}
    further = {name: value for name, value in fields.items() if name not in of_task}
    of_execution, of_evaluation = sort_keywords(further, (Execution, Evaluation))
    of_evaluation |= of_task  # all_tokens; it refuses the others, with the reason
    if evaluation is not None and of_evaluation:
        raise OtptError(f"Both evaluation and {', '.join(of_evaluation)} were given; expected one or the other.")
    return evaluation or Evaluation(**of_evaluation), (execution or Execution()).replace(**of_execution)


def _load_datasets(datasets: object) -> list[Dataset]:
    """Return data sets from one or several names, data sets, or objects of other libraries."""
    is_list = isinstance(datasets, (list, tuple)) and not hasattr(datasets, "classes")
    items: Sequence[object] = cast(Sequence[object], datasets) if is_list else [datasets]
    loaded: list[Dataset] = []
    for item in items:
        words = item.words if isinstance(item, Source) else (str(item),) if isinstance(item, (str, Path)) else ()
        loaded += [stratified(load_dataset(word)) for word in words] or [stratified(as_dataset(item))]
    each_once("data set", [dataset.name for dataset in loaded])
    return loaded


def _of_features(datasets: Sequence[Dataset]) -> FeatureBackbone:
    """Return the stand-in for the model of data sets that have the features of images and texts."""
    models = {
        (dataset.width, dataset.logit_scale, dataset.backbone)
        for dataset in datasets
        if isinstance(dataset, FeatureDataset) and dataset.text_features is not None
    }
    if len(models) != 1 or any(dataset.text_features is None for dataset in datasets):
        named = ", ".join(repr(dataset.name) for dataset in datasets)
        raise OtptError(f"{named} do not all have text features of one model; name a backbone, or run each by itself.")
    return FeatureBackbone(*models.pop())
