"""``otpt serve``: predictions over HTTP, with a web page."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from otpt.backbones.sources import EMBEDDED
from otpt.cli import options as o
from otpt.cli.terminal import note, show
from otpt.data import ClassList, read_class_list
from otpt.errors import OtptError
from otpt.groups import class_names_of
from otpt.records import Frozen
from otpt.serve import Limits, Service, ServiceConfig, create_app
from otpt.serve.config import public_name, read_folder, read_token
from otpt.serve.queries import DEFAULT
from otpt.serve.replicas import start_replicas
from otpt.serve.server import LOOPBACK, address_of, open_socket
from otpt.serve.server import run as run_server
from otpt.serve.service import AnsweringService

_MIB = 1 << 20
_UNITS = {"bytes": ("MiB", _MIB), "pixels": ("million pixels", 1_000_000)}
"""Units of options, by the unit that begins the description of a limit."""


def _unit(record: type[Frozen], field: str) -> tuple[str, str, int]:
    """Return the description of a limit without its unit, the unit of its option, and that unit in numbers."""
    word, _, rest = (record.model_fields[field].description or "").partition(" ")
    unit, size = _UNITS.get(word, (word, 1))
    return rest, unit, size


def _limit(field: str, name: str, record: type[Frozen] = Limits) -> Parameter:
    """Return the option of a limit, in the unit of the option."""
    rest, unit, size = _unit(record, field)
    default = record.model_fields[field].default / size
    at_least_one = any(getattr(bound, "gt", None) == 0 for bound in record.model_fields[field].metadata)
    bounds = validators.Number(gt=0, lt=1e9) if at_least_one else validators.Number(gte=0, lt=1e9)
    return o.option(f"{unit} {rest} (default: {default:g})", name, validator=bounds)


@o.option_group("Limits")
class LimitOptions(o.Options):
    """What a request may cost."""

    body: Annotated[float | None, _limit("body", "--max-body")] = None
    memory: Annotated[float | None, _limit("memory", "--max-memory")] = None
    pixels: Annotated[float | None, _limit("pixels", "--max-pixels")] = None
    images: Annotated[int | None, _limit("images", "--max-images")] = None
    labels: Annotated[int | None, _limit("labels", "--max-labels")] = None
    label_length: Annotated[int | None, _limit("label_length", "--max-label-length")] = None
    texts: Annotated[int | None, _limit("texts", "--max-texts")] = None
    work: Annotated[int | None, _limit("work", "--max-work")] = None
    views: Annotated[int | None, _limit("views", "--max-views")] = None
    queue: Annotated[int | None, _limit("queue", "--queue")] = None
    share: Annotated[float | None, _limit("share", "--share")] = None
    arrival: Annotated[float | None, _limit("arrival", "--arrival")] = None
    seconds: Annotated[float | None, _limit("seconds", "--seconds")] = None
    text_cache: Annotated[float | None, _limit("text_cache", "--text-cache", ServiceConfig)] = None

    def values(self, record: type[Frozen]) -> dict[str, object]:
        """Return the given limits that are fields of a record, in bytes and pixels."""
        values: dict[str, object] = {}
        for name, value in self.given().items():
            if name in record.model_fields and isinstance(value, (int, float)):
                *_, size = _unit(record, name)
                values[name] = round(value * size) if size > 1 else value
        return values


@o.option_group("Options")
class AddressOptions(o.Options):
    """Where the service listens, and to whom."""

    host: Annotated[str, o.option("address to listen at")] = "127.0.0.1"
    port: Annotated[int, o.option("port; 0: any that is free")] = 8000
    token_file: Annotated[Path | None, o.option("requests must carry the token in this file", metavar="FILE")] = None
    hosts: Annotated[
        o.Several, o.option("Host headers to accept (default: any, or the loopback's)", metavar="NAME")
    ] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], o.option("how much is logged")] = "info"

    @property
    def names(self) -> Collection[str] | None:
        """Host names that requests may be for; None for any."""
        return self.hosts or (LOOPBACK if self.host in LOOPBACK else None)


@o.option_group("Options")
class ServiceOptions(o.Options):
    """What is served."""

    backbone: Annotated[
        tuple[str, ...], o.option("backbones, as SPEC or NAME=SPEC; the first is the default", metavar="SPEC")
    ] = EMBEDDED
    classes: Annotated[
        tuple[str, ...],
        o.option(
            "class names, or class lists of files: @pets.txt is 'pets', @DIR all *.txt of a folder; the names, or the "
            "only list, are the default of requests without labels",
            metavar="NAME|@FILE",
        ),
    ] = ()
    groups: Annotated[
        Path | None, o.option("CSV file of groups of the default classes; alone, it names them", metavar="FILE")
    ] = None
    method: Annotated[str | None, o.setting(ServiceConfig, "method", "--methods", "--method", metavar="NAME")] = None
    views: Annotated[int | None, o.setting(ServiceConfig, "views")] = None
    seed: Annotated[int | None, o.setting(ServiceConfig, "seed", "--seeds", "--seed")] = None
    calibration: Annotated[
        Path | None, o.option("folder of files of 'otpt calibrate': DIR/pets.json", metavar="DIR")
    ] = None
    allow_urls: Annotated[tuple[str, ...], o.option("fetch images from these public hosts", metavar="HOST")] = ()
    device: o.Device = "auto"
    precision: o.Precision = "float32"
    compile: Annotated[bool, o.option("torch.compile the image tower")] = False
    threads: o.Threads = None

    def config(self, limits: LimitOptions) -> ServiceConfig:
        """Return the configuration of the service."""
        values = {name: value for name, value in self.given().items() if name in ServiceConfig.model_fields}
        further = {
            "models": _named_models(self.backbone),
            "classes": _class_lists(self.classes, self.groups),
            "calibrations": self.calibration,
            "hosts": self.allow_urls,
            "limits": Limits(**limits.values(Limits)),
        }
        return ServiceConfig(**{**values, **limits.values(ServiceConfig), **further})


def serve(
    *,
    address: AddressOptions = AddressOptions(),
    service: ServiceOptions = ServiceOptions(),
    limits: LimitOptions = LimitOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Serve predictions over HTTP: POST /v1/predict, /v1/compare, Hugging Face's zero-shot image classification at
    /models/NAME, a page at /, Prometheus at /metrics. Needs the extra otpt[serve].

    otpt serve --classes panda dog "red fox"
    otpt serve --backbone pocket --classes @pets.txt
    otpt serve --backbone clip=ViT-B-16/openai --host 0.0.0.0 --token-file token.txt
    """
    config = service.config(limits)
    token = read_token(address.token_file)
    if address.host not in LOOPBACK and token is None:
        note("Warning: everybody who can reach this address may use the service; --token-file restricts it.")
    o.use_threads(service.threads)
    on_this_machine = ray.is_local
    with open_socket(address.host, address.port) as listening:
        if on_this_machine:
            started: AbstractContextManager[AnsweringService] = nullcontext(Service.from_config(config))
        else:
            started = start_replicas(ray.engine, config, f"otpt-{address.port}", **ray.cluster_options())
        with started as answering:
            app = create_app(answering, token=token, names=address.names)
            show(f"otpt: serving {', '.join(config.models)} at {address_of(listening)}")
            run_server(app, listening, config.limits, log_level=address.log_level)
    return 0


def _named_models(words: tuple[str, ...]) -> dict[str, str]:
    """Read ``NAME=SPEC``, or ``SPEC``, which is its own name unless it is a path."""
    models: dict[str, str] = {}
    for word in words:
        name, equals, spec = word.partition("=")
        shown = name if equals else public_name(name)
        if not name or shown in models or (equals and not spec):
            raise OtptError(f"--backbone was given {word!r}; expected BACKBONE or NAME=BACKBONE, and each name once.")
        models[shown] = spec or name
    return models


def _class_lists(words: tuple[str, ...], groups: Path | None) -> dict[str, ClassList]:
    """Return the class lists of ``--classes`` by name: of files, of folders, or of names as "default"."""
    lists: dict[str, ClassList] = {}
    default = o.read_classes([word for word in words if not word.startswith("@")] or None)
    if groups is not None and not words:
        names = class_names_of(groups)
        default = ClassList(names, names)
    if default is not None:
        lists[DEFAULT] = default
    for path in [Path(word[1:]).expanduser() for word in words if word.startswith("@")]:
        lists |= read_folder(path, ".txt", read_class_list) if path.is_dir() else {path.stem: read_class_list(path)}
    return lists
