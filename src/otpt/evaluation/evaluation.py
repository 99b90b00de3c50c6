"""Evaluations: compute missing shards in one or several processes, then the metrics."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import pandas as pd
from filelock import FileLock
from pydantic import Field

from otpt.backbones import Backbone, FeatureBackbone, as_backbone, is_backbone, load_backbone
from otpt.data import Dataset, FeatureDataset, as_dataset, load_dataset, stratified
from otpt.errors import OtptError
from otpt.evaluation.evaluator import Evaluator, dataset_configs, run_config
from otpt.evaluation.request import Evaluation, each_once, overlaps
from otpt.features.cache import FeatureCache
from otpt.files import is_there
from otpt.methods import Task, load_plugin
from otpt.processes import WorkerDied, WorkerPool
from otpt.progress import Progress, duration
from otpt.records import Frozen, sort_keywords
from otpt.runs import CONFIG, DatasetConfig, Run, WorkItem, short_table, write_metrics
from otpt.runs.run import locked

_POLL_SECONDS = 1.0


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
class Job:
    """Evaluation that can be started by any process.

    Attributes:
        backbone: a model, the name of one, or a function of a device that loads one.
        datasets: in the order in which they are evaluated (see :func:`stratified`).
        requested: the data sets and columns to compute, as in the run's configuration.
        threads: number of threads that decode and augment, in each process.
        plugins: files with a user's functions, loaded in each process.
        command: the command line, for the record.
    """

    backbone: object
    datasets: Sequence[Dataset]
    requested: Sequence[DatasetConfig]
    evaluation: Evaluation
    folder: Path
    cache: FeatureCache | None = None
    device: str = "auto"
    threads: int | None = None
    plugins: Sequence[Path] = ()
    command: str | None = None

    def open(self, on_image: Callable[[], None] | None = None) -> tuple[Run, Evaluator]:
        """Load the model, and create or extend the run."""
        backbone = self._load()
        evaluator = Evaluator(
            backbone, self.datasets, self.evaluation, cache=self.cache, threads=self.threads, on_image=on_image
        )
        config = run_config(backbone, self.requested, self.evaluation, command=self.command)
        return Run.create(self.folder, config), evaluator

    def _load(self) -> Backbone:
        """Return the model on the device of this process."""
        model = self.backbone
        if isinstance(model, (str, Path)):
            return load_backbone(model, device=self.device)
        if not hasattr(model, "fingerprint"):
            if not callable(model):
                raise OtptError(
                    f"The model is {model!r:.80}; expected a loaded backbone, a name such as 'ViT-B-16/openai', or a "
                    "function of a device that loads one."
                )
            model = model(self.device)
        return as_backbone(model) if is_backbone(model) else cast(Backbone, model)

    def pack(self, dumps: Callable[[object], bytes] = pickle.dumps) -> PackedJob:
        """Pack the job for another process."""
        try:
            return tuple(self.plugins), dumps(self)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise OtptError(f"The evaluation cannot be sent to other processes ({error}); use one process.") from None


PackedJob = tuple[tuple[Path, ...], bytes]
"""Plugins, which must be loaded before methods can be unpickled; and the pickled job."""


def unpack(packed: PackedJob) -> Job:
    """Restore a job in the process that works on it."""
    plugins, pickled = packed
    for plugin in plugins:
        load_plugin(plugin)
    job: Job = pickle.loads(pickled)
    return job


@runtime_checkable
class Engine(Protocol):
    """Backend that computes the shards of a job."""

    def run(self, job: Job, progress: Progress) -> None:
        """Compute all missing shards."""


class LocalEngine:
    """Computation in this process; several processes on any machines can share a run folder."""

    def run(self, job: Job, progress: Progress) -> None:
        """Compute all missing shards, or wait for the processes that do."""
        run, evaluator = job.open(on_image=lambda: progress.update(progress.done + 1))
        progress.start(*run.progress(job.requested))
        while missing := run.missing(job.requested):
            compute(run, evaluator, missing)
            if run.missing(job.requested) == missing:
                time.sleep(_POLL_SECONDS)


def compute(run: Run, evaluator: Evaluator, items: Sequence[WorkItem]) -> None:
    """Compute and store items that are not locked by another process."""
    locks: dict[WorkItem, FileLock] = {}

    def claimed() -> Iterator[WorkItem]:
        for item in items:
            lock = run.lock(item)
            if lock is not None:
                locks[item] = lock
                yield item

    for item, shards in evaluator(claimed()):
        for shard in shards:
            run.write(shard)
        if shards[0].stop == item.stop:
            run.unlock(locks.pop(item))


class ProcessEngine:
    """Several processes on one machine: one per GPU, or any number on the CPU.

    Args:
        workers: number of processes.
        devices: of the processes; the job's device by default.
    """

    def __init__(self, workers: int, devices: Sequence[str] | None = None) -> None:
        if workers < 1:
            raise OtptError(f"The number of workers is {workers}; expected 1 or more.")
        self.workers, self.devices = workers, devices

    def run(self, job: Job, progress: Progress) -> None:
        """Start the workers and wait; the first ``OtptError`` of one ends all."""
        packed = job.pack()
        for workers in range(self.workers, 0, -1):  # one fewer after a death, which often means too little memory
            pool = WorkerPool(workers, job.threads)
            try:
                self._wait(job, pool, packed, progress)
                return
            except WorkerDied:
                if workers == 1:
                    raise
            finally:
                pool.close()  # safe at any time: shards are written whole or not at all

    def _wait(self, job: Job, pool: WorkerPool, packed: PackedJob, progress: Progress) -> None:
        devices = self.devices or [job.device]
        running = {
            pool.submit(_work, packed, devices[number % len(devices)], pool.threads) for number in range(pool.workers)
        }
        while running:
            finished, running = wait(running, timeout=_POLL_SECONDS)
            for future in finished:
                for message in pool.result(future):
                    warnings.warn(message, stacklevel=2)
            if is_there(job.folder / CONFIG):
                done, total = Run(job.folder).progress(job.requested)
                if progress.total:
                    progress.update(done)
                else:
                    progress.start(done, total)


def _work(packed: PackedJob, device: str, threads: int) -> list[str]:
    """Compute missing shards in a worker process until none is left; return the warnings."""
    with warnings.catch_warnings(record=True) as warned:
        job = unpack(packed)
        LocalEngine().run(replace(job, device=device, threads=job.threads or threads), Progress(show=False))
    return [str(warning.message) for warning in warned]


class Execution(Frozen):
    """How an evaluation is computed; nothing here changes a row."""

    cache: FeatureCache | None = Field(None, description="cache of image features and of gradients at the init")
    engine: Engine | None = Field(
        None, description="other processes or machines to compute on; None computes in this process"
    )
    progress: Progress | None = Field(None, description="how progress is shown; not at all if None")
    device: str = Field("auto", description="device on which the model is loaded, unless it is loaded already")
    threads: int | None = Field(None, ge=0, description="number of threads that decode and augment, in each process")
    plugins: tuple[Path, ...] = Field((), description="files with a user's functions that worker processes load")
    command: str | None = Field(None, description="command line, recorded in the run")
    retry_unreadable: bool = Field(False, description="compute shards with images that could not be read again")


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
            warnings.warn(sentence, stacklevel=2)
    variants = [variant for dataset in loaded for variant in evaluation.variants(dataset)]
    job = Job(
        backbone=_of_features(loaded) if backbone is None else backbone,
        datasets=variants,
        requested=dataset_configs(variants, evaluation),
        evaluation=evaluation,
        folder=Path(out),
        cache=execution.cache,
        device=execution.device,
        threads=execution.threads,
        plugins=execution.plugins,
        command=execution.command,
    )
    if is_there(job.folder / CONFIG):
        run = Run(job.folder)
        run.remove_damaged()
        for name, seed, column, row in list(run.unreadable(job.requested)) if execution.retry_unreadable else ():
            run.remove(name, seed, column, row["index"])
    with execution.progress or Progress(show=False) as shown:
        (execution.engine or LocalEngine()).run(job, shown)
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
        dataset = load_dataset(str(item)) if isinstance(item, (str, Path)) else as_dataset(item)
        loaded.append(stratified(dataset))
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
