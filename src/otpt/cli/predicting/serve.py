"""``otpt serve``: the classifier behind HTTP, with a page to play with."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.information.doctor import EXTRAS
from otpt.cli.options.engines import add_ray_options, refuse_ray_options
from otpt.cli.options.models import add_device_options
from otpt.cli.options.spellings import add_methods_option, add_seeds_option, add_threads_option, use_threads
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.serve.limits import Limits
    from otpt.serve.settings import Settings

_MIB = 1 << 20

LIMITS = {
    "body": ("--max-body", "MiB of a request", _MIB),
    "memory": ("--max-memory", "MiB of all requests under way", _MIB),
    "pixels": ("--max-pixels", "million pixels of an image", 1_000_000),
    "images": ("--max-images", "images of a request", 1),
    "labels": ("--max-labels", "labels of a request", 1),
    "label_length": ("--max-label-length", "characters of a label or template", 1),
    "views": ("--max-views", "views of an image", 1),
    "queue": ("--queue", "images accepted and not yet answered; beyond that requests get 429", 1),
    "arrival": ("--arrival", "seconds for a request to arrive", 1),
    "seconds": ("--seconds", "seconds for a request to be answered", 1),
}
"""Limit → option, words, and the unit that it is given in."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``serve``."""
    from otpt.settings import DEFAULT_METHOD

    parser.description = (
        "Serve predictions over HTTP: POST /v1/predict, /v1/compare, Hugging Face's zero-shot image classification at "
        "/models/NAME, a page at /, Prometheus at /metrics. Needs the extra otpt[serve]."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s, the loopback)")
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s; 0: any that is free)")
    parser.add_argument(
        "--models",
        "--model",
        nargs="+",
        default=["pocket"],
        metavar="SPEC",
        help="backbones, as SPEC or NAME=SPEC; the first is the default (default: pocket, the embedded one)",
    )
    add_device_options(parser)
    words = f"of requests that name none (default: {DEFAULT_METHOD})"
    add_methods_option(parser, default=None, words=words, dest="method", several=False)
    parser.add_argument("--views", type=int, default=64, metavar="N", help="of requests that say none (default: 64)")
    words = "seed of the views, of requests that say none (default: 0)"
    add_seeds_option(parser, default=[0], words=words, dest="seed", several=False)
    parser.add_argument(
        "--classes-folder", type=Path, metavar="DIR", help="class lists by name: DIR/pets.txt is 'pets'"
    )
    parser.add_argument("--calibrations", type=Path, metavar="DIR", help="files of 'otpt calibrate': DIR/pets.json")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="requests must carry the token in this file")
    parser.add_argument(
        "--hosts", nargs="+", metavar="NAME", help="Host headers to serve (default: any, or the loopback's)"
    )
    parser.add_argument(
        "--allow-urls", nargs="+", default=[], metavar="HOST", help="fetch images from these public hosts"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add_threads_option(parser)
    _add_limits(parser)
    add_ray_options(parser, "ray: replicas on a Ray cluster, behind this process")
    parser.set_defaults(run=run)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    from otpt.serve.limits import TEXT_CACHE, Limits

    group = parser.add_argument_group("limits")
    for name, (option, words, unit) in LIMITS.items():
        default = getattr(Limits(), name) / unit
        shown = f"{words} (default: {default:g})"
        group.add_argument(option, dest=f"limit_{name}", type=float, metavar="N", help=shown)
    group.add_argument(
        "--text-cache",
        type=float,
        default=TEXT_CACHE / _MIB,
        metavar="MIB",
        help="MiB of prepared class lists that are kept (default: %(default)g)",
    )
    group.add_argument(
        "--together", type=int, metavar="N", help="images of a pass of the engine (default: as many as wait)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    if missing := [name for name in EXTRAS["serve"][0] if find_spec(name.replace("-", "_")) is None]:
        raise OtptError(f"otpt serve needs {', '.join(missing)}; install it with: pip install 'otpt[serve]'")
    from otpt.serve.server import LOOPBACK, address_of, open_socket
    from otpt.serve.server import run as serve
    from otpt.serve.settings import read_token

    limits, token = chosen_limits(options), read_token(options.token_file)
    names = options.hosts or (LOOPBACK if options.host in LOOPBACK else None)
    use_threads(options.threads)
    listening = open_socket(options.host, options.port)
    try:
        settings = chosen_settings(options, limits)
        with _application(options, settings, token=token, names=names) as app:
            print(f"otpt: serving {', '.join(settings.models)} at {address_of(listening)}", flush=True)
            serve(app, listening, limits, log_level=options.log_level)
    finally:
        listening.close()
    return 0


def _application(options: argparse.Namespace, settings: Settings, **door: Any) -> AbstractContextManager[Any]:
    """The application of one process, or the door in front of replicas on Ray."""
    if options.engine == "ray":
        from otpt.cli.predicting.serve_on_ray import door_of

        return door_of(options, settings, **door)
    refuse_ray_options(options)
    from otpt.serve.app import create_app

    return nullcontext(create_app(settings.service(), **door))


def chosen_settings(options: argparse.Namespace, limits: Limits) -> Settings:
    """The service that the options describe."""
    from otpt.serve.settings import Settings, named_models
    from otpt.settings import DEFAULT_METHOD

    return Settings(
        named_models(options.models),
        device=options.device,
        precision=options.precision,
        compile=options.compile,
        method=options.method or DEFAULT_METHOD,
        views=options.views,
        seed=options.seed,
        classes=options.classes_folder,
        calibrations=options.calibrations,
        text_cache=int(options.text_cache * _MIB),
        limits=limits,
        hosts=tuple(options.allow_urls),
        together=options.together,
        threads=options.threads,
    )


def chosen_limits(options: argparse.Namespace) -> Limits:
    """The limits that the options describe; the others are the default ones."""
    from otpt.serve.limits import Limits

    given: dict[str, Any] = {}
    for name, (option, _, unit) in LIMITS.items():
        value = getattr(options, f"limit_{name}")
        if value is not None:
            if not 0 < value < float("inf"):
                raise OtptError(f"{option} was given {value:g}; expected a number above 0.")
            given[name] = value if name in ("arrival", "seconds") else max(int(value * unit), 1)
    return Limits(**given)
