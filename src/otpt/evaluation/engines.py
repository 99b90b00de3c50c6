"""Engines: where the parts of a run are computed. Each makes the missing parts exist; none changes a byte of them.

An engine is any object with ``run(job, report)``. Work items are independent, and what a part holds depends on
nothing but its item; so an engine is only a way of handing items to :class:`Evaluator` objects.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.cache import FeatureCache
from otpt.evaluation.claims import Claims
from otpt.evaluation.evaluator import Judged, evaluator_for
from otpt.evaluation.progress import Begun, News, seen
from otpt.evaluation.run import CLAIMS, CONFIG, Run, WorkItem
from otpt.evaluation.settings import Model, Settings, run_config

Report = Callable[[News], None]

_POLL_SECONDS = 0.5


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
        threads: that decode and augment, in each process.
    """

    backbone: Callable[[str], Model]
    datasets: Sequence[Callable[[], Dataset]]
    settings: Settings
    folder: Path
    cache: FeatureCache | None = None
    device: str = "auto"
    threads: int | None = None


class Engine(Protocol):
    """How the parts of a job are made."""

    def run(self, job: Job, report: Report) -> Run:
        """Make all missing parts; tell of each picture; return the run."""


class LocalEngine:
    """All in this process. Several such processes on one folder share the work."""

    def run(self, job: Job, report: Report) -> Run:
        """See :class:`Engine`."""
        datasets = [make() for make in job.datasets]
        backbone = job.backbone(job.device)

        def on_picture(judged: Judged) -> None:
            report(seen(judged))

        evaluator = evaluator_for(
            backbone, datasets, job.settings, cache=job.cache, threads=job.threads, on_picture=on_picture
        )
        run = Run.create(job.folder, run_config(backbone, datasets, job.settings))
        pictures = {item.number: item.stop - item.start for item in run.items}
        left = sum(pictures[item.number] for item in run.missing())
        report(Begun(sum(pictures.values()) - left, sum(pictures.values())))
        with Claims(run.folder / CLAIMS) as claims:
            while missing := run.missing():
                before = len(missing)
                for item, part in evaluator(_claimed(run, claims, missing)):
                    run.write(item, part)
                    claims.release(item.number)
                if len(run.missing()) == before:
                    time.sleep(_POLL_SECONDS)  # others are at work on all that is left
        return run


def _claimed(run: Run, claims: Claims, items: Sequence[WorkItem]) -> Iterator[WorkItem]:
    for item in items:
        if run.has(item) or not claims.take(item.number):
            continue
        if run.has(item):  # finished by another process between the two questions
            claims.release(item.number)
            continue
        yield item


class ProcessEngine:
    """Several processes on one machine: one a GPU, or so many on the CPU.

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
        news: Any = context.Queue()
        threads = max(torch.get_num_threads() // self._workers, 1)
        processes: list[BaseProcess] = []
        try:
            for number in range(self._workers):
                device = job.device if self._devices is None else self._devices[number % len(self._devices)]
                arguments = (job, device, threads, news)
                process: BaseProcess = context.Process(
                    target=_work, args=arguments, daemon=True, name=f"otpt-worker-{number}"
                )
                with _interrupts_held():  # Ctrl-C reaches all processes; the first one ends the others
                    process.start()
                processes.append(process)
            _listen(processes, news, report)
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()  # at any moment: parts are whole or not there
                process.join()
            news.close()
        lost = [process.exitcode for process in processes if process.exitcode]
        run = Run(job.folder) if (job.folder / CONFIG).exists() else None
        if run is None or run.missing():
            raise OtptError(
                f"{len(lost)} of {self._workers} worker processes ended before their work was done (exit code "
                f"{lost[0] if lost else 0}; -9 often means too little memory: take fewer workers). Give the same "
                "command again to go on."
            )
        return run


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started meanwhile never sees SIGINT, not even while it imports torch; ours comes afterwards."""
    if sys.platform == "win32":  # pragma: no cover
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(processes: Sequence[BaseProcess], news: Any, report: Report) -> None:
    """Pass on what the workers tell until all have ended; the first error of a user's ends all."""
    while True:
        alive = any(process.is_alive() for process in processes)
        try:
            message = news.get(timeout=_POLL_SECONDS / 2)
        except queue.Empty:
            if not alive:
                return
            continue
        if isinstance(message, OtptError):
            raise message
        if isinstance(message, str):
            warnings.warn(message, stacklevel=2)
            continue
        report(message)


def _work(job: Job, device: str, threads: int, news: Any) -> None:
    """A worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be held back from the start
    torch.set_num_threads(threads)
    warnings.showwarning = lambda message, *_, **__: news.put(str(message))
    own = replace(job, device=device, threads=threads if job.threads is None else job.threads)
    try:
        LocalEngine().run(own, news.put)
    except OtptError as error:
        news.put(OtptError(str(error)))


def _end_with_parent() -> None:
    """A worker whose first process was killed would go on alone, unseen; parts are whole or not there."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
