"""The connection to a Ray cluster, quietly and with errors in one sentence."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from otpt.errors import OtptError

_ANSWERS_WITHIN = 20.0  # seconds, for an address


def import_ray(*modules: str) -> Any:
    """Ray, and those of its modules that are needed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C++ part writes errors to the terminal that are none
    try:
        for each in modules:
            importlib.import_module(each)
        return importlib.import_module("ray")
    except ImportError:
        raise OtptError("The engine 'ray' needs Ray, which is not installed; pip install 'otpt[ray]'.") from None


@contextmanager
def connected(ray: Any, address: str | None, *, object_store: int = 256 * 2**20) -> Iterator[None]:
    """A connection to the cluster; one that this program had before is used and kept.

    Args:
        ray: the module.
        address: of a running cluster; None starts one on this machine and ends it afterwards.
        object_store: bytes, of a cluster of our own. By default little: only short rows pass through it.
    """
    if ray.is_initialized():
        yield
        return
    if address is not None:
        _check_answers(address)
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


def _check_answers(address: str) -> None:
    """Ray itself tries for many minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdigit():  # "auto": there Ray knows at once
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise OtptError(f"Cannot reach Ray at {address!r}: {error}.") from None


@contextmanager
def _closed_stderr() -> Iterator[None]:
    """Ray's C++ part says on the terminal which level of log it was given; its errors come as exceptions."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
