"""Replicas of the service on a cluster, from an installed package.

A package names a function in its entry points, which takes the configuration, the name of the application and options,
and returns a context manager of the :class:`~otpt.serve.service.AnsweringService` in front of the replicas::

    [project.entry-points."otpt.services"]
    mine = "my_package:replicas"
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from otpt.errors import OtptError
from otpt.plugins import installed_plugins, load_entry_point
from otpt.serve.config import ServiceConfig
from otpt.serve.service import AnsweringService

SERVICES = "otpt.services"
"""Group of entry points that name functions which start replicas."""


def start_replicas(
    engine: str, config: ServiceConfig, name: str, **options: object
) -> AbstractContextManager[AnsweringService]:
    """Return a context manager that starts replicas and ends them.

    Args:
        engine: name of the entry point.
        config: configuration of each replica.
        name: name of the application on the cluster.
        options: further keywords of the function.
    """
    available = [point.name for point in installed_plugins(SERVICES)]
    function = load_entry_point(SERVICES, "engine", engine, ["local", *available])
    try:
        started: AbstractContextManager[AnsweringService] = function(config, name, **options)
    except TypeError as error:
        raise OtptError(f"The engine {engine!r} does not take these options: {error}.") from None
    return started
