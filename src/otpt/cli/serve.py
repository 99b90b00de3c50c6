"""``otpt serve``: predictions over HTTP, with a web page."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from otpt.cli import options as o
from otpt.cli.lists import missing_packages
from otpt.cli.terminal import note
from otpt.errors import OtptError
from otpt.settings import DEFAULT_METHOD

if TYPE_CHECKING:
    from otpt.serve import Limits, ServiceConfig

_MIB = 1 << 20
_UNITS = {"body": _MIB, "memory": _MIB, "pixels": 1_000_000}


def _limit(help: str, name: str) -> Parameter:
    return o.option(help, name, validator=validators.Number(gt=0, lt=1e9))


@o.option_group("Limits")
class LimitOptions:
    """What a request may cost."""

    body: Annotated[float | None, _limit("MiB of a request (default: 16)", "--max-body")] = None
    memory: Annotated[float | None, _limit("MiB of all requests in progress (default: 512)", "--max-memory")] = None
    pixels: Annotated[float | None, _limit("million pixels of an image (default: 50)", "--max-pixels")] = None
    images: Annotated[int | None, _limit("images of a request (default: 16)", "--max-images")] = None
    labels: Annotated[int | None, _limit("labels of a request (default: 2000)", "--max-labels")] = None
    label_length: Annotated[int | None, _limit("characters of a label (default: 200)", "--max-label-length")] = None
    texts: Annotated[int | None, _limit("labels × templates of a request (default: 8000)", "--max-texts")] = None
    views: Annotated[int | None, _limit("views of an image (default: 64)", "--max-views")] = None
    queue: Annotated[int | None, _limit("images in progress; beyond, requests get 429 (default: 128)", "--queue")] = (
        None
    )
    share: Annotated[
        float | None, _limit("part of queue and memory that one client holds (default: 0.5)", "--share")
    ] = None
    arrival: Annotated[float | None, _limit("seconds for a request to arrive (default: 30)", "--arrival")] = None
    seconds: Annotated[float | None, _limit("seconds for a request to be answered (default: 60)", "--seconds")] = None
    text_cache: Annotated[float, o.option("MiB of prepared class lists in memory", at_least=0)] = 2048

    def limits(self) -> Limits:
        """Return the limits, in bytes and pixels."""
        from otpt.serve import Limits

        found = o.given(self, Limits.model_fields)
        return Limits(**{name: round(found[name] * _UNITS[name]) if name in _UNITS else found[name] for name in found})


def serve(
    *,
    host: Annotated[str, o.option("address to listen at")] = "127.0.0.1",
    port: Annotated[int, o.option("port; 0: any that is free")] = 8000,
    backbone: Annotated[
        tuple[str, ...], o.option("backbones, as SPEC or NAME=SPEC; the first is the default", metavar="SPEC")
    ] = ("pocket",),
    classes: Annotated[
        tuple[str, ...],
        o.option("class lists of files: @pets.txt is 'pets', @DIR all *.txt of a folder", metavar="@FILE"),
    ] = (),
    methods: Annotated[str, o.methods("default method of requests")] = DEFAULT_METHOD,
    views: Annotated[int, o.option("default number of views")] = 64,
    seed: Annotated[int, o.seeds("default seed of the views")] = 0,
    calibration: Annotated[
        Path | None, o.option("folder of files of 'otpt calibrate': DIR/pets.json", metavar="DIR")
    ] = None,
    token_file: Annotated[Path | None, o.option("requests must carry the token in this file", metavar="FILE")] = None,
    hosts: Annotated[
        tuple[str, ...] | None, o.option("Host headers to accept (default: any, or the loopback's)", metavar="NAME")
    ] = None,
    allow_urls: Annotated[tuple[str, ...], o.option("fetch images from these public hosts", metavar="HOST")] = (),
    device: o.Device = "auto",
    precision: o.Precision = "float32",
    compile: Annotated[bool, o.option("torch.compile the image tower")] = False,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], o.option("how much is logged")] = "info",
    threads: o.Threads = None,
    limits: LimitOptions = LimitOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Serve predictions over HTTP: POST /v1/predict, /v1/compare, Hugging Face's zero-shot image classification at
    /models/NAME, a page at /, Prometheus at /metrics. Needs the extra otpt[serve].

    otpt serve --backbone pocket --classes @pets.txt
    otpt serve --backbone clip=ViT-B-16/openai --host 0.0.0.0 --token-file token.txt
    """
    if missing := missing_packages("serve"):
        raise OtptError(f"otpt serve needs {', '.join(missing)}; install it with: pip install 'otpt[serve]'")
    from otpt.serve import Service, ServiceConfig, create_app
    from otpt.serve.config import read_token
    from otpt.serve.server import LOOPBACK, address_of, open_socket
    from otpt.serve.server import run as run_server

    config = ServiceConfig(
        models=_named_models(backbone),
        device=device,
        precision=precision,
        compile=compile,
        method=methods,
        views=views,
        seed=seed,
        classes=_class_lists(classes),
        calibrations=calibration,
        text_cache=int(limits.text_cache * _MIB),
        limits=limits.limits(),
        hosts=allow_urls,
        threads=threads,
    )
    guard: dict[str, Any] = {
        "token": read_token(token_file),
        "names": hosts or (LOOPBACK if host in LOOPBACK else None),
    }
    if host not in LOOPBACK and token_file is None:
        note("Warning: everybody who can reach this address may use the service; --token-file restricts it.")
    o.use_threads(threads)
    listening = open_socket(host, port)
    try:
        if ray.check():
            serving: Any = _on_ray(config, ray, port, guard)
        else:
            serving = nullcontext(create_app(Service.from_config(config), **guard))
        with serving as app:
            print(f"otpt: serving {', '.join(config.models)} at {address_of(listening)}", flush=True)
            run_server(app, listening, config.limits, log_level=log_level)
    finally:
        listening.close()
    return 0


def _named_models(given: tuple[str, ...]) -> dict[str, str]:
    """Read ``NAME=SPEC``, or ``SPEC``, which is its own name."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, spec = each.partition("=")
        if not name or name in found or (equals and not spec):
            raise OtptError(f"--backbone was given {each!r}; expected BACKBONE or NAME=BACKBONE, and each name once.")
        found[name] = spec or name
    return found


def _class_lists(classes: tuple[str, ...]) -> Any:
    """Return the class lists of ``--classes`` by name: of files, of folders, or of names as "default"."""
    from otpt.data.classes import read_class_list
    from otpt.serve.config import read_folder

    found: dict[str, Any] = {}
    if words := [word for word in classes if not word.startswith("@")]:
        found["default"] = o.read_classes(words)
    for path in (Path(word[1:]).expanduser() for word in classes if word.startswith("@")):
        found |= read_folder(path, ".txt", read_class_list) if path.is_dir() else {path.stem: read_class_list(path)}
    return found


@contextmanager
def _on_ray(config: ServiceConfig, options: o.RayOptions, port: int, guard: dict[str, Any]) -> Iterator[Any]:
    """Run replicas and yield the proxy's application; other applications on the cluster stay."""
    from otpt.evaluation.ray import connected, import_ray

    # Ray writes to standard output when a worker dies
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")
        ray = import_ray("ray.serve")
        with connected(ray, options.ray_address, object_store=config.limits.memory):
            logging.getLogger("ray.serve").setLevel(logging.ERROR)
            name = f"otpt-{port}"
            from otpt.serve import create_app
            from otpt.serve.ray import RayService, bind_replicas

            resources = options.resources()
            bound = bind_replicas(config, replicas=resources["actors"], cpus=resources["cpus"], gpus=resources["gpus"])
            ray.serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
            try:
                handle = ray.serve.run(bound, name=name, route_prefix=None)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[-1]
                raise OtptError(f"The replicas did not start on Ray: {reason}") from None
            try:
                with redirect_stdout(sys.__stdout__):
                    yield create_app(RayService(handle, config.limits), **guard)
            finally:
                ray.serve.delete(name)
