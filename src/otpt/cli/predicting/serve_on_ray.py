"""``otpt serve --engine ray``: this process takes the requests, replicas on a Ray cluster answer them."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from otpt.cli.options.engines import ray_actors
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.serve.settings import Settings


@contextmanager
def door_of(options: argparse.Namespace, settings: Settings, **door: Any) -> Iterator[Any]:
    """The door's application, for as long as the replicas run; those of other applications on the cluster stay."""
    from otpt.evaluation.ray.cluster import connected, import_ray

    # Ray writes to the standard output when a worker dies; there the address of the service is told.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray("ray.serve")
        with connected(ray, options.ray_address, object_store=settings.limits.memory):
            logging.getLogger("ray.serve").setLevel(logging.ERROR)
            name = f"otpt-{options.port}"
            handle = _started(ray.serve, options, settings, name)
            try:
                from otpt.serve.replicas.forwarding import create_door
                from otpt.serve.replicas.ray_replicas import RayReplicas

                with redirect_stdout(sys.__stdout__):
                    yield create_door(RayReplicas(handle), settings.limits, **door)
            finally:
                ray.serve.delete(name)


def _started(serve: Any, options: argparse.Namespace, settings: Settings, name: str) -> Any:
    """A handle to the replicas, when the fewest of them are warm."""
    from otpt.serve.replicas.ray_replicas import replicas_of

    actors, gpus, cpus = ray_actors(options)
    bound = replicas_of(settings, replicas=actors, cpus=cpus, gpus=gpus)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    try:
        return serve.run(bound, name=name, route_prefix=None)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise OtptError(f"The replicas did not start on Ray: {reason}") from None
