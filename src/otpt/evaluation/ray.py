"""An evaluation on a Ray cluster: Ray Data hands the missing work items to actors that hold the model.

Each actor writes its shards into the run folder, which all machines must see. Ray places the actors, adds and removes
them with the cluster, and gives the work of an actor or machine that died to another one. An item whose rows exist is
skipped.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import torch

from otpt.errors import OtptError
from otpt.evaluation.evaluation import Job, PackedJob
from otpt.evaluation.evaluator import Evaluator
from otpt.evaluation.progress import Progress
from otpt.files import is_there
from otpt.runs import CONFIG, Run, WorkItem

_CONNECT_SECONDS = 20.0
_MOST_BLOCKS = 10_000
_VISIBLE_SECONDS = 90.0  # network file systems may hide a new file from other machines for a minute


class RayEngine:
    """Actors on a Ray cluster.

    Args:
        address: of a running cluster ("auto", "HOST:PORT", "ray://…"); None starts one on this machine and ends it
            afterwards. An existing connection (``ray.init``) is used and left open.
        actors: minimum and maximum number; None as the maximum takes what the cluster has or can add.
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
            raise OtptError(f"The numbers of Ray actors are {fewest} and {most}; expected 1 ≤ minimum ≤ maximum.")
        if gpus < 0:
            raise OtptError(f"The number of GPUs of a Ray actor is {gpus}; expected 0 or more.")
        if cpus < 1:
            raise OtptError(f"The number of CPUs of a Ray actor is {cpus}; expected 1 or more.")
        self._address, self._actors, self._gpus, self._cpus = address, actors, gpus, cpus

    def run(self, job: Job, progress: Progress) -> None:
        """Compute all missing shards."""
        job = replace(job, folder=job.folder.absolute(), device=self._device(job), threads=job.threads or self._cpus)
        with quiet_ray("ray.data") as ray, connected(ray, self._address), _errors_in_words(ray):
            self._check_resources(ray)
            arguments = (job.pack(ray.cloudpickle.dumps), os.getcwd(), self._cpus)
            prepare = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=3)(_prepare)
            _unwrap(ray.get(prepare.remote(*arguments)))  # the machine that computes decides the configuration
            _wait_until(lambda: is_there(job.folder / CONFIG), job)
            run = Run(job.folder)
            progress.start(*run.progress(job.requested))
            while missing := run.missing(job.requested):
                written = []
                for item, computed in self._compute(ray, arguments, missing):
                    if computed:
                        written.append(item)
                        progress.update(progress.done + item.images)
                _wait_until(partial(_are_visible, run, written), job)
                if not written:  # other processes work on all that is left
                    time.sleep(1.0)

    def _device(self, job: Job) -> str:
        """Ray shows each actor its own GPUs only, so they need no numbers."""
        on_gpu = job.device.startswith("cuda")
        if on_gpu and self._gpus == 0:
            raise OtptError(
                f"Device {job.device!r} was requested, but actors without a GPU; expected 'gpus' (--ray-gpus) above 0."
            )
        if job.device == "auto" or on_gpu:
            return "cuda" if self._gpus else "cpu"
        return job.device

    def _check_resources(self, ray: Any) -> None:
        """A cluster of one machine cannot grow."""
        if self._address is not None:
            return
        available = ray.cluster_resources()
        for name, wanted in (("CPU", self._cpus), ("GPU", self._gpus)):
            if wanted > available.get(name, 0):
                raise OtptError(
                    f"A Ray actor needs {wanted:g} {name}s, but this machine's Ray has {available.get(name, 0):g}; ask "
                    "for less, or give the address of a larger cluster."
                )

    def _compute(
        self, ray: Any, arguments: tuple[Any, ...], items: Sequence[WorkItem]
    ) -> Iterator[tuple[WorkItem, bool]]:
        """Yield (item, whether it was computed or left to another process) as actors answer."""
        blocks = min(len(items), _MOST_BLOCKS)
        fewest, most = self._actors
        # One item in progress and one waiting: Ray adds actors only where items wait, and few should wait at the end.
        pool = ray.data.ActorPoolStrategy(
            min_size=min(fewest, blocks), max_size=min(most or blocks, blocks), max_tasks_in_flight_per_actor=2
        )
        answers = ray.data.from_items([json.dumps(asdict(item)) for item in items], override_num_blocks=blocks)
        answers = answers.map_batches(
            _Actor,
            fn_constructor_args=arguments,
            batch_size=1,
            compute=pool,
            num_cpus=self._cpus,
            num_gpus=self._gpus,
        )
        for batch in answers.iter_batches(batch_size=None, prefetch_batches=0):
            for text, answer in zip(batch["item"], batch["answer"], strict=True):
                yield _item(text), _unwrap(answer)


def _are_visible(run: Run, items: Sequence[WorkItem]) -> bool:
    return not any(run.lacks(item) for item in items)


def _item(text: str) -> WorkItem:
    values = json.loads(text)
    return WorkItem(**{**values, "columns": tuple(tuple(column) for column in values["columns"])})


def _open(packed: PackedJob, folder: str, threads: int) -> tuple[Run, Evaluator]:
    """Load everything on a machine of the cluster; ``folder`` is where relative paths begin."""
    torch.set_num_threads(threads)
    if os.path.isdir(folder):
        os.chdir(folder)
    return packed.unpack().open()


def _prepare(packed: PackedJob, folder: str, threads: int) -> str:
    return _answer(lambda: _open(packed, folder, threads) and True)


class _Actor:
    """Holds the model and the data sets, and computes shards."""

    def __init__(self, packed: PackedJob, folder: str, threads: int) -> None:
        self._arguments = packed, folder, threads

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        torch.set_num_threads(self._arguments[2])  # here, since Ray may call from another thread than before
        items = [str(item) for item in batch["item"]]
        return {"item": items, "answer": [_answer(lambda item=item: self._compute(_item(item))) for item in items]}  # type: ignore[misc]

    def _compute(self, item: WorkItem) -> bool:
        run, evaluator = self._opened
        if not run.lacks(item):  # written by an actor that died before it could answer
            return True
        lock = run.lock(item)
        if lock is None:
            return False
        for _, shards, _ in evaluator([item]):
            for shard in shards:
                run.write(shard)
        run.unlock(lock)
        return True

    @cached_property
    def _opened(self) -> tuple[Run, Evaluator]:
        folder = self._arguments[0].unpack().folder
        if not is_there(folder / CONFIG):
            raise OtptError(
                f"The machine {platform.node()!r} does not see the run folder {str(folder)!r}; put it on storage that "
                "all machines of the Ray cluster share, under the same path."
            )
        return _open(*self._arguments)


def _answer(work: Callable[[], Any]) -> str:
    """Result, error and warnings of ``work`` in one line of JSON, which any version of Ray can carry."""
    warned: list[str] = []
    found, error = None, ""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warned.append(str(message))
        try:
            found = work()
        except OtptError as problem:
            error = str(problem)
    return json.dumps([found, error, warned])


def _unwrap(answer: str) -> Any:
    found, error, warned = json.loads(answer)
    for message in warned:
        warnings.warn(message, stacklevel=2)
    if error:
        raise OtptError(error)
    return found


def _wait_until(condition: Callable[[], bool], job: Job) -> None:
    until = time.monotonic() + _VISIBLE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise OtptError(
                f"What Ray actors wrote is not visible in {str(job.folder)!r} here; put the run folder on storage that "
                "all machines of the Ray cluster share, under the same path."
            )
        time.sleep(0.5)


@contextmanager
def _errors_in_words(ray: Any) -> Iterator[None]:
    """One sentence if the cluster fails; an error in the code keeps its traceback."""
    try:
        yield
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayTaskError):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise OtptError(f"Ray stopped ({type(error).__name__}: {reason}). Repeat the command to continue.") from None


def import_ray(*modules: str) -> Any:
    """Import Ray and those of its modules that are needed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        for each in modules:
            importlib.import_module(each)
        return importlib.import_module("ray")
    except ImportError:
        raise OtptError("The engine 'ray' needs Ray, which is not installed; pip install 'otpt[ray]'.") from None


@contextmanager
def quiet_ray(*modules: str) -> Iterator[Any]:
    """Ray without its progress bars, log lines and warnings."""
    # Ray prints to the standard output when a worker dies; that is for results, which may be JSON.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray(*modules)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL + 1)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray


@contextmanager
def connected(ray: Any, address: str | None, *, object_store: int = 256 * 2**20) -> Iterator[None]:
    """Connect to a cluster; an existing connection is used and left open.

    Args:
        ray: the module.
        address: of a running cluster; None starts one on this machine and ends it afterwards.
        object_store: bytes, of a cluster on this machine.
    """
    if ray.is_initialized():
        yield
        return
    if address is not None:
        _check_reachable(address)
    own = {"include_dashboard": False, "object_store_memory": object_store} if address is None else {}
    try:
        with _closed_stderr():
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # that a node did not start in time has no class of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        where = "Cannot start Ray on this machine" if address is None else f"Cannot reach Ray at {address!r}"
        raise OtptError(f"{where}: {reason}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail early: Ray itself tries for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdigit():  # "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OtptError(f"Cannot reach Ray at {address!r}: {error}.") from None


@contextmanager
def _closed_stderr() -> Iterator[None]:
    """Hide what Ray's C++ part prints at the start; its errors come as exceptions."""
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)
