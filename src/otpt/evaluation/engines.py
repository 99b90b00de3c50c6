"""Engines: where the shards of a run are computed. Each makes the missing shards exist; none changes a byte of them.

An engine is any object with ``run(job, report)``. Work items are independent, and what a shard holds depends on
nothing but its item; so an engine is only a way of handing items to :class:`Evaluator` objects.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from otpt.data import Dataset, stratified
from otpt.errors import OtptError
from otpt.evaluation.config import Model, dataset_configs, run_config
from otpt.evaluation.evaluator import Evaluator, Predicted
from otpt.evaluation.progress import ProgressEvent, Started, image_done
from otpt.evaluation.settings import Settings
from otpt.features.cache import FeatureCache
from otpt.files import is_there
from otpt.methods import load_plugin
from otpt.runs.locks import Locks
from otpt.runs.run import CONFIG, LOCKS, Run
from otpt.runs.schedule import Schedule

Report = Callable[[ProgressEvent], None]


@dataclass(frozen=True)
class Job:
    """An evaluation as any process can start it.

    Args:
        backbone: device → model. For several processes it must be picklable, such as
            ``functools.partial`` of a function of a module.
        datasets: each makes one data set; picklable too for several processes.
        folder: of the run.
        cache: of image features, None for none.
        device: as for :func:`otpt.backbones.load_backbone`.
        threads: that decode and augment, in each process; of several processes also those that compute.
        plugins: files with functions of the user's own, run in each process.
        command: the line that asked for it, kept in the run for people.
    """

    backbone: Callable[[str], Model]
    datasets: Sequence[Callable[[], Dataset]]
    settings: Settings
    folder: Path
    cache: FeatureCache | None = None
    device: str = "auto"
    threads: int | None = None
    plugins: Sequence[Path] = ()
    command: str | None = None

    def load_datasets(self) -> list[Dataset]:
        """The data sets in their canonical order, of which every beginning is stratified (see :func:`stratified`)."""
        return [stratified(make()) for make in self.datasets]

    def asked(self) -> list[dict[str, Any]]:
        """Data sets, columns, seeds and numbers of images, as in the configuration of a run."""
        return dataset_configs(self.load_datasets(), self.settings)

    def evaluator(
        self, backbone: Any, datasets: Sequence[Dataset], *, on_image: Callable[[Predicted], None]
    ) -> Evaluator:
        """What computes its shards, of a loaded model and data."""
        return Evaluator(backbone, datasets, self.settings, cache=self.cache, threads=self.threads, on_image=on_image)


@dataclass(frozen=True)
class PackedJob:
    """A job on its way to another process, where the plugins must run before its methods can be unpacked."""

    plugins: tuple[Path, ...]
    pickled: bytes

    @classmethod
    def of(cls, job: Job, dumps: Callable[[Job], bytes] = pickle.dumps) -> PackedJob:
        """The job, packed."""
        return cls(tuple(job.plugins), dumps(job))

    def unpack(self) -> Job:
        """The job, in the process that is to work on it."""
        for plugin in self.plugins:
            load_plugin(plugin)
        job: Job = pickle.loads(self.pickled)
        return job


class Engine(Protocol):
    """How the shards of a job are made."""

    def run(self, job: Job, report: Report) -> Run:
        """Make all missing shards; report each image; return the run."""


class LocalEngine:
    """All in this process. Several such processes on one folder share the work."""

    def run(self, job: Job, report: Report) -> Run:
        """See :class:`Engine`."""
        datasets = job.load_datasets()
        backbone = job.backbone(job.device)
        evaluator = job.evaluator(backbone, datasets, on_image=lambda predicted: report(image_done(predicted)))
        config = run_config(backbone, datasets, job.settings, command=job.command)
        run = Run.create(job.folder, config)
        asked = config["datasets"]
        report(Started(*run.progress(asked)))
        with Locks(run.folder / LOCKS) as locks:
            schedule = Schedule(run, asked, locks)
            while schedule.list_missing():
                for item, shards, last in evaluator(schedule.take()):
                    for shard in shards:
                        run.write(shard)
                    if last:
                        locks.release(item.lock)
                time.sleep(schedule.pause())
        return run


class ProcessEngine:
    """Several processes on one machine: one per GPU, or any number on the CPU.

    Args:
        workers: number of processes.
        devices: of each process; all the job's device by default.
    """

    def __init__(self, workers: int, devices: Sequence[str] | None = None) -> None:
        if workers < 1:
            raise OtptError(f"The number of workers is {workers}; expected 1 or more.")
        self._workers = workers
        self._devices = devices

    def run(self, job: Job, report: Report) -> Run:
        """See :class:`Engine`."""
        context = multiprocessing.get_context("spawn")  # a forked copy of torch's threads would hang
        shared = torch.get_num_threads() // self._workers
        threads = max(shared if job.threads is None else job.threads, 1)
        packed = PackedJob.of(job)
        processes: list[BaseProcess] = []
        receivers: list[Connection] = []
        try:
            for number in range(self._workers):
                device = job.device if self._devices is None else self._devices[number % len(self._devices)]
                # To each worker a pipe of its own: one that is killed in the middle of a message leaves no lock behind.
                receiver, sender = context.Pipe(duplex=False)
                receivers.append(receiver)
                process: BaseProcess = context.Process(
                    target=_work, args=(packed, device, threads, sender), daemon=True, name=f"otpt-worker-{number}"
                )
                with _interrupts_held():  # Ctrl-C reaches all processes; the first one ends the others
                    process.start()
                sender.close()  # so that the pipe ends with the worker
                processes.append(process)
            _listen(receivers, report)
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()  # at any moment: shards are whole or not there
                process.join()
            for receiver in receivers:
                receiver.close()
        lost = [process.exitcode for process in processes if process.exitcode]
        run = Run(job.folder) if is_there(job.folder / CONFIG) else None
        if run is None or run.missing(job.asked()):
            raise OtptError(
                f"{len(lost)} of {self._workers} worker processes ended before their work was done (exit code "
                f"{lost[0] if lost else 0}; -9 often means too little memory: take fewer workers). Repeat the "
                "command to continue."
            )
        return run


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started meanwhile never sees SIGINT, not even while it imports torch; ours comes afterwards."""
    if sys.platform == "win32":  # pragma: no cover
        yield
        return
    # Started with the first worker, the tracker would let the signal through again before that worker is there.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(receivers: Sequence[Connection], report: Report) -> None:
    """Pass on what the workers report until all have ended; the first error of a user's ends all."""
    still_open = list(receivers)
    while still_open:
        ready = wait(still_open)
        for receiver in [each for each in still_open if each in ready]:
            try:
                message = receiver.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                still_open.remove(receiver)  # the worker has ended, perhaps in the middle of a message
                continue
            if isinstance(message, OtptError):
                raise message
            if isinstance(message, str):
                warnings.warn(message, stacklevel=2)
                continue
            report(message)


def _work(packed: PackedJob, device: str, threads: int, sender: Connection) -> None:
    """A worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be held back from the start
    torch.set_num_threads(threads)
    sending = threading.Lock()

    def send(message: object) -> None:
        with sending:
            sender.send(message)

    warnings.showwarning = lambda message, *_, **__: send(str(message))
    try:
        job = packed.unpack()
        own = replace(job, device=device, threads=threads if job.threads is None else job.threads)
        LocalEngine().run(own, send)
    except OtptError as error:
        send(OtptError(str(error)))


def _end_with_parent() -> None:
    """A worker whose first process was killed would go on alone, unseen; shards are whole or not there."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
