"""The shards of a run on a Ray cluster: Ray Data hands the missing ones to actors that hold the model.

Each actor writes its shards into the run folder, which all machines must see; what comes back is a short row per item.
Ray places the actors, adds and removes them with the cluster, and gives the work of an actor or machine that died to
another. A shard that is already there is skipped, and one that is made twice is made of the same bytes.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any

from otpt.errors import OtptError
from otpt.evaluation.engines import Job, PackedJob, Report
from otpt.evaluation.progress import ImageDone, Started
from otpt.evaluation.ray.cluster import connected, import_ray
from otpt.evaluation.ray.worker import RayWorker, as_item, as_text, configure, read_answer
from otpt.runs.run import Run, WorkItem

_MOST_TASKS = 10_000  # the items of a larger run are handed out several at a time
_SEEN_WITHIN = 90.0  # seconds; network file systems may hide a new file from other machines for a minute


class RayEngine:
    """Actors on a Ray cluster; see :class:`otpt.evaluation.Engine`.

    Args:
        address: of a running cluster ("auto", "HOST:PORT", "ray://…"); None starts one on this machine and ends it
            afterwards. If the program has already called ``ray.init``, that connection is used and left open.
        actors: fewest and most; None as the most takes what the cluster has or can add.
        gpus: of each actor; a fraction such as 0.5 puts two on one GPU, 0 computes on the CPU.
        cpus: of each actor, and so its threads.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        actors: tuple[int, int | None] = (1, None),
        gpus: float = 0.0,
        cpus: int = 1,
    ) -> None:
        fewest, most = actors
        if fewest < 1 or (most is not None and most < fewest):
            raise OtptError(f"The numbers of Ray actors are {fewest} and {most}; expected 1 ≤ fewest ≤ most.")
        if gpus < 0:
            raise OtptError(f"The number of GPUs of a Ray actor is {gpus}; expected 0 or more.")
        if cpus < 1:
            raise OtptError(f"The number of CPUs of a Ray actor is {cpus}; expected 1 or more.")
        self._address = address
        self._actors = actors
        self._gpus = gpus
        self._cpus = cpus

    def run(self, job: Job, report: Report) -> Run:
        """See :class:`otpt.evaluation.Engine`."""
        threads = self._cpus if job.threads is None else job.threads
        job = replace(job, folder=job.folder.absolute(), device=self._device(job), threads=threads)
        with _quiet_ray() as ray, connected(ray, self._address), _failures_told(ray):
            self._check_resources(ray)
            packed = PackedJob.of(job, ray.cloudpickle.dumps)
            config = self._configure(ray, packed)
            run, asked = Run.create(job.folder, config), config["datasets"]
            report(Started(*run.progress(asked)))
            # What another process is at work on is left to it at first. What is still missing then is done here in any
            # case: the other's machine may be gone, and a shard that is made twice does no harm.
            done: set[WorkItem] = set()
            for lock in (True, False):
                items = [item for item in run.missing(asked) if item not in done]
                for item, images in self._make(ray, packed, items, lock=lock):
                    done.add(item)
                    for results in images:
                        report(ImageDone(item.dataset, item.seed, results))
        _wait_until_seen(run, asked)
        return run

    def _device(self, job: Job) -> str:
        """Ray shows each actor its own GPUs only, so they need no numbers."""
        on_gpu = job.device.startswith("cuda")
        if on_gpu and self._gpus == 0:
            raise OtptError(
                f"Device {job.device!r} was asked for, but actors without a GPU; expected 'gpus' (--ray-gpus) above 0."
            )
        if job.device == "auto" or on_gpu:
            return "cuda" if self._gpus else "cpu"
        return job.device

    def _check_resources(self, ray: Any) -> None:
        """On a cluster that cannot grow, what is not there will never be."""
        if self._address is not None:
            return
        there = ray.cluster_resources()
        for name, asked in (("CPU", self._cpus), ("GPU", self._gpus)):
            if asked > there.get(name, 0):
                raise OtptError(
                    f"A Ray actor needs {asked:g} {name}s, but this machine's Ray has {there.get(name, 0):g}; ask for "
                    "less, or give the address of a larger cluster."
                )

    def _configure(self, ray: Any, packed: PackedJob) -> dict[str, Any]:
        """The run's configuration as a machine that computes sees it: here there may be no GPU."""
        remote = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=3)(configure)
        config: dict[str, Any] = _unwrap(ray.get(remote.remote(packed, os.getcwd(), self._cpus)))
        return config

    def _make(
        self, ray: Any, packed: PackedJob, items: Sequence[WorkItem], *, lock: bool
    ) -> Iterator[tuple[WorkItem, list[dict[tuple[str, str], tuple[float, bool]]]]]:
        """(item, results of its images) as it is finished; not of those that others have."""
        if not items:
            return
        tasks = min(len(items), _MOST_TASKS)
        fewest, most = self._actors
        # One item at work and one waiting: Ray adds actors only where items wait, and few should wait at the end.
        pool = ray.data.ActorPoolStrategy(
            min_size=min(fewest, tasks), max_size=min(most or tasks, tasks), max_tasks_in_flight_per_actor=2
        )
        answers = ray.data.from_items([as_text(item) for item in items], override_num_blocks=tasks).map_batches(
            RayWorker,
            fn_constructor_args=(packed, os.getcwd(), self._cpus, lock),
            batch_size=1,
            compute=pool,
            num_cpus=self._cpus,
            num_gpus=self._gpus,
        )
        for batch in answers.iter_batches(batch_size=None, prefetch_batches=0):
            for text, answer in zip(batch["item"], batch["answer"], strict=True):
                images = _unwrap(answer)
                if images is not None:
                    yield as_item(text), [{(p, m): (c, bool(ok)) for p, m, c, ok in image} for image in images]


def _unwrap(answer: str) -> Any:
    """What a worker found; its warnings are issued and its error is raised here."""
    found, error, warned = read_answer(answer)
    for message in warned:
        warnings.warn(message, stacklevel=2)
    if error:
        raise OtptError(error)
    return found


def _wait_until_seen(run: Run, asked: Sequence[dict[str, Any]]) -> None:
    until = time.monotonic() + _SEEN_WITHIN
    while missing := run.missing(asked):
        if time.monotonic() > until:
            raise OtptError(
                f"Shards of {sum(item.images for item in missing)} images that Ray actors wrote are not visible in "
                f"{str(run.folder)!r} here; put the run folder on storage that all machines of the Ray cluster share, "
                "under the same path."
            )
        time.sleep(0.5)


@contextmanager
def _failures_told(ray: Any) -> Iterator[None]:
    """One sentence where the cluster fails; a mistake in the code keeps its traceback."""
    try:
        yield
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayTaskError):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise OtptError(f"Ray stopped ({type(error).__name__}: {reason}). Repeat the command to continue.") from None


@contextmanager
def _quiet_ray() -> Iterator[Any]:
    """The module, without its progress bars, log lines and warnings: an evaluation has its own."""
    # Ray prints to the standard output when a worker dies; that is for results, which may be JSON.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray("ray.data")
        context = ray.data.DataContext.get_current()
        bars = context.enable_progress_bars
        shown = [
            (handler, handler.level)
            for handler in logging.getLogger("ray.data").handlers
            if isinstance(handler, logging.StreamHandler)
        ]
        context.enable_progress_bars = False
        for handler, _ in shown:
            handler.setLevel(logging.CRITICAL + 1)
        try:
            yield ray
        finally:
            context.enable_progress_bars = bars
            for handler, level in shown:
                handler.setLevel(level)
