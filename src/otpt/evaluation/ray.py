"""Ray actors of ``otpt predict``: their number, and the connection to the cluster."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import ModuleType

from otpt.errors import OtptError

_CONNECT_SECONDS = 20.0
_MOST_BLOCKS = 10_000
_VISIBLE_SECONDS = 90.0  # network file systems may hide a new file from other machines for a minute


@dataclass(frozen=True)
class RayEngine:
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
