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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from types import ModuleType

import torch

from otpt.errors import OtptError
from otpt.evaluation.evaluation import Job, PackedJob, compute, unpack
from otpt.evaluation.evaluator import Evaluator
from otpt.files import is_there
from otpt.progress import Progress
from otpt.runs import CONFIG, Run, WorkItem

_CONNECT_SECONDS = 20.0
_MOST_BLOCKS = 10_000
_VISIBLE_SECONDS = 90.0  # network file systems may hide a new file from other machines for a minute


@dataclass(frozen=True)
class RayPool:
    """Actors on a Ray cluster.

    Attributes:
        address: of a running cluster ("auto", "HOST:PORT", "ray://…"); None starts one on this machine and ends it
            afterwards. An existing connection (``ray.init``) is used and left open.
        actors: minimum and maximum number; None as the maximum uses the whole cluster.
        gpus: of each actor; a fraction such as 0.5 puts two on one GPU, 0 computes on the CPU.
        cpus: of each actor, and so its threads.
    """

    address: str | None = None
    actors: tuple[int, int | None] = (1, None)
    gpus: float = 0.0
    cpus: int = 1

    def __post_init__(self) -> None:
        fewest, most = self.actors
        if fewest < 1 or (most is not None and most < fewest):
            raise OtptError(f"The numbers of Ray actors are {fewest} and {most}; expected 1 ≤ minimum ≤ maximum.")
        if self.gpus < 0 or self.cpus < 1:
            raise OtptError(f"A Ray actor gets {self.cpus} CPUs and {self.gpus} GPUs; expected 1 CPU or more.")

    def device(self, device: str) -> str:
        """Return the device in an actor, without an index, since each actor sees only its own GPUs."""
        on_gpu = device.startswith("cuda")
        if on_gpu and self.gpus == 0:
            raise OtptError(
                f"Device {device!r} was requested, but actors without a GPU; expected 'gpus' (--ray-gpus) above 0."
            )
        return ("cuda" if self.gpus else "cpu") if device == "auto" or on_gpu else device

    def check_resources(self, ray: ModuleType) -> None:
        """Raise ``OtptError`` if no actor fits; only a cluster of one machine cannot grow."""
        available = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if self.address is None and wanted > available.get(name, 0):
                raise OtptError(
                    f"A Ray actor needs {wanted:g} {name}s, but this machine's Ray has {available.get(name, 0):g}; "
                    "request fewer, or use the address of a larger cluster."
                )


class RayEngine(RayPool):
    """An :class:`otpt.evaluation.Engine` on Ray actors."""

    def run(self, job: Job, progress: Progress) -> None:
        """Compute all missing shards."""
        device, threads = self.device(job.device), job.threads or self.cpus
        job = replace(job, folder=job.folder.absolute(), device=device, threads=threads)
        with quiet_ray("ray.data") as ray, connected(ray, self.address), errors_in_words(ray):
            self.check_resources(ray)
            arguments = job.pack(ray.cloudpickle.dumps), os.getcwd(), self.cpus
            # the machine that computes decides the configuration
            prepare = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=3)(_prepare)
            _unwrap(ray.get(prepare.remote(*arguments)))
            _wait_until(lambda: is_there(job.folder / CONFIG), job)
            run = Run(job.folder)
            progress.start(*run.progress(job.requested))
            while missing := run.missing(job.requested):
                items = {json.dumps(asdict(item)): item for item in missing}
                written: list[WorkItem] = []
                for text, computed in self._compute(ray, arguments, list(items)):
                    if computed:
                        written.append(items[text])
                        progress.update(progress.done + items[text].images)
                _wait_until(lambda: not any(run.lacks(item) for item in written), job)  # noqa: B023
                if not written:  # other processes work on all that is left
                    time.sleep(1.0)

    def _compute(
        self, ray: ModuleType, arguments: tuple[PackedJob, str, int], items: Sequence[str]
    ) -> Iterator[tuple[str, bool]]:
        """Yield items in the order in which actors finish them, False for those that other processes work on."""
        blocks = min(len(items), _MOST_BLOCKS)
        fewest, most = self.actors
        # One item in progress and one waiting: Ray adds actors only where items wait, and few should wait at the end.
        pool = ray.data.ActorPoolStrategy(
            min_size=min(fewest, blocks), max_size=min(most or blocks, blocks), max_tasks_in_flight_per_actor=2
        )
        answers = ray.data.from_items(list(items), override_num_blocks=blocks).map_batches(
            _Actor,
            fn_constructor_args=arguments,
            batch_size=1,
            compute=pool,
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        for batch in answers.iter_batches(batch_size=None, prefetch_batches=0):
            for item, answer in zip(batch["item"], batch["answer"], strict=True):
                yield str(item), _unwrap(answer)


class _Actor:
    """Holds the model and the data sets, and computes shards."""

    def __init__(self, packed: PackedJob, folder: str, threads: int) -> None:
        self._arguments = packed, folder, threads

    def __call__(self, batch: Mapping[str, Iterable[object]]) -> dict[str, list[str]]:
        items = [str(item) for item in batch["item"]]
        return {"item": items, "answer": [_answer(partial(self._compute, item)) for item in items]}

    def _compute(self, item: str) -> bool:
        torch.set_num_threads(self._arguments[2])  # here, since Ray may call from another thread than before
        run, evaluator = self._opened
        values = json.loads(item)
        work = WorkItem(**{**values, "columns": tuple(tuple(column) for column in values["columns"])})
        compute(run, evaluator, [work])
        return not run.lacks(work)

    @cached_property
    def _opened(self) -> tuple[Run, Evaluator]:
        folder = unpack(self._arguments[0]).folder
        if not is_there(folder / CONFIG):
            raise OtptError(
                f"The machine {platform.node()!r} does not see the run folder {str(folder)!r}; put it on storage that "
                "all machines of the Ray cluster share, under the same path."
            )
        return _open(*self._arguments)


def _answer(work: Callable[[], bool]) -> str:
    """Run ``work`` and return result, error and warnings as JSON."""
    warned: list[str] = []
    done, error = False, ""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warned.append(str(message))
        try:
            done = work()
        except OtptError as problem:
            error = str(problem)
    return json.dumps([done, error, warned])


def _unwrap(text: str) -> bool:
    """Return the result of :func:`_answer`, raising its warnings and error."""
    done, error, warned = json.loads(text)
    for message in warned:
        warnings.warn(message, stacklevel=2)
    if error:
        raise OtptError(error)
    return bool(done)


def _open(packed: PackedJob, folder: str, threads: int) -> tuple[Run, Evaluator]:
    """Load everything on a machine of the cluster; ``folder`` is where relative paths begin."""
    torch.set_num_threads(threads)
    if os.path.isdir(folder):
        os.chdir(folder)
    return unpack(packed).open()


def _prepare(packed: PackedJob, folder: str, threads: int) -> str:
    return _answer(lambda: bool(_open(packed, folder, threads)))


def _wait_until(condition: Callable[[], bool], job: Job) -> None:
    until = time.monotonic() + _VISIBLE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise OtptError(
                f"Shards of Ray actors are not visible in {str(job.folder)!r} here; put the run folder on storage that "
                "all machines of the Ray cluster share, under the same path."
            )
        time.sleep(0.5)


@contextmanager
def errors_in_words(ray: ModuleType) -> Iterator[None]:
    """Convert cluster failures to ``OtptError``; other errors keep their traceback."""
    try:
        yield
    except ray.exceptions.RayError as error:
        if isinstance(error, ray.exceptions.RayTaskError):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise OtptError(f"Ray stopped ({type(error).__name__}: {reason}). Repeat the command to continue.") from None


def import_ray(*modules: str) -> ModuleType:
    """Import Ray and some of its modules, and return Ray; its attributes have no types."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        for module in modules:
            importlib.import_module(module)
        return importlib.import_module("ray")
    except ImportError:
        raise OtptError("The engine 'ray' needs Ray, which is not installed; pip install 'otpt[ray]'.") from None


@contextmanager
def quiet_ray(*modules: str) -> Iterator[ModuleType]:
    """Import Ray without progress bars, log lines and warnings within a context."""
    # Ray prints to the standard output when a worker dies; that is for results, which may be JSON.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray(*modules)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL + 1)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray


@contextmanager
def connected(ray: ModuleType, address: str | None, *, object_store: int = 256 * 2**20) -> Iterator[None]:
    """Connect to a cluster; an existing connection is used and left open.

    Args:
        ray: the module.
        address: of a running cluster; None starts one on this machine and ends it afterwards.
        object_store: bytes, of a cluster on this machine.
    """
    if ray.is_initialized():
        yield
        return
    options = {"include_dashboard": False, "object_store_memory": object_store} if address is None else {}
    try:
        _check_reachable(address or "")
        with _closed_stderr():
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # that a node did not start in time has no class of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        where = "Cannot start Ray on this machine" if address is None else f"Cannot reach Ray at {address!r}"
        raise OtptError(f"{where}: {reason}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail early if the address is unreachable; Ray itself retries for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if port.isdigit():  # not "auto"
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


@contextmanager
def _closed_stderr() -> Iterator[None]:
    """Hide the output of Ray's C++ part at the start; its errors are exceptions."""
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)
