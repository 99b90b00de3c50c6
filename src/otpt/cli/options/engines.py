"""Where an evaluation is computed: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from otpt.cli.options.spellings import flag
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.evaluation import Engine

RAY_OPTIONS = ("ray_address", "ray_actors", "ray_gpus", "ray_cpus")


EVALUATING = "ray: actors on a Ray cluster, the run folder on storage that its machines share"


def add_ray_options(parser: argparse.ArgumentParser, words: str = EVALUATING) -> None:
    """Which engine, and which resources of a Ray cluster; ``words`` say what it does there."""
    group = parser.add_argument_group("more than one machine")
    group.add_argument(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help=f"{words} (default: %(default)s)",
    )
    group.add_argument(
        "--ray-address", metavar="ADDRESS", help="'auto' or HOST:PORT (default: start Ray on this machine)"
    )
    group.add_argument("--ray-actors", nargs=2, type=int, metavar=("MIN", "MAX"), help="(default: 1, all that fit)")
    group.add_argument("--ray-gpus", type=float, metavar="N", help="GPUs per actor, such as 1 or 0.5 (default: 0)")
    group.add_argument("--ray-cpus", type=int, metavar="N", help="CPUs per actor (default: 1)")


def refuse_ray_options(options: argparse.Namespace) -> None:
    """``OtptError`` for options of the other engine."""
    for name in RAY_OPTIONS:
        if getattr(options, name) is not None:
            raise OtptError(f"{flag(name)} was given without --engine ray; expected both.")


def chosen_engine(options: argparse.Namespace) -> Engine:
    """Ray's actors, or processes of this machine."""
    if options.engine == "local":
        refuse_ray_options(options)
        return local_engine(options)
    if options.workers is not None:
        raise OtptError("--workers was given with --engine ray; expected --ray-actors there.")
    from otpt.evaluation.ray.engine import RayEngine

    actors, gpus, cpus = ray_actors(options)
    return RayEngine(options.ray_address, actors=actors, gpus=gpus, cpus=cpus)


def local_engine(options: argparse.Namespace) -> Engine:
    """One process or several: as many as asked for, or one for each GPU."""
    from otpt.backbones import available_devices
    from otpt.evaluation import LocalEngine, ProcessEngine

    if options.workers is not None and options.workers < 1:
        raise OtptError(f"--workers was given {options.workers}; expected 1 or more.")
    gpus = [name for name in available_devices() if name.startswith("cuda:")]
    use_all = len(gpus) > 1 and options.device in {"auto", "cuda"}
    workers = options.workers or (len(gpus) if use_all else 1)
    if workers == 1:
        return LocalEngine()
    return ProcessEngine(workers, gpus if use_all else None)


def ray_actors(options: argparse.Namespace) -> tuple[tuple[int, int | None], float, int]:
    """How few and how many actors, and the GPUs and CPUs of each."""
    fewest, most = options.ray_actors or (1, None)
    gpus = 0.0 if options.ray_gpus is None else options.ray_gpus
    cpus = 1 if options.ray_cpus is None else options.ray_cpus
    return (fewest, most), gpus, cpus
