"""Connection to a Ray cluster. Ray is imported when it is used, because the extra ``otpt[ray]`` may be missing."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType

from otpt.errors import OtptError

_CONNECT_SECONDS = 20.0


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
        raise OtptError("The pool 'ray' needs Ray, which is not installed; pip install 'otpt[ray]'.") from None


@contextmanager
def quiet_ray(*modules: str) -> Iterator[ModuleType]:
    """Import Ray, and hide its warnings and what it prints within a context."""
    # Ray prints to the standard output when a worker dies; that is for results, which may be JSON.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray(*modules)
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
