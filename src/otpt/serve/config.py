"""Configuration of the service; picklable, unlike loaded models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import Field, JsonValue, model_validator

from otpt.backbones.checkpoints import SUFFIXES
from otpt.backbones.sources import EMBEDDED
from otpt.data.classes import ClassList
from otpt.errors import OtptError, cannot_read
from otpt.methods import DEFAULT_METHOD
from otpt.records import Frozen

_SHORTEST_TOKEN = 16
_T = TypeVar("_T")


class Limits(Frozen):
    """Limits of a request and of the whole service."""

    body: int = Field(16 << 20, gt=0, description="bytes of a request")
    memory: int = Field(512 << 20, gt=0, description="bytes of the bodies of all requests in progress")
    pixels: int = Field(50_000_000, gt=0, description="pixels of an image, and of all images decoded at a time")
    images: int = Field(16, gt=0, description="images of a request")
    labels: int = Field(2000, gt=1, description="labels of a request")
    label_length: int = Field(200, gt=0, description="characters of a label or a template")
    templates: int = Field(100, gt=0, description="templates of a request")
    groups: int = Field(200, gt=0, description="groups of labels of a request")
    texts: int = Field(8000, gt=0, description="texts to encode for a request: labels × templates")
    methods: int = Field(8, gt=0, description="methods of a request")
    work: int = Field(
        100_000, gt=0, description="work of a request, in texts through the text tower; a view counts as 20"
    )
    scores: int = Field(50_000, gt=0, description="scores of an answer: images × methods × top")
    views: int = Field(64, gt=0, description="views of an image")
    queue: int = Field(128, gt=0, description="images in progress; beyond, requests get 429")
    share: float = Field(0.5, gt=0, le=1, description="largest part of queue and memory that one client address holds")
    arrival: float = Field(30.0, gt=0, description="seconds for the headers, and for the body, of a request to arrive")
    seconds: float = Field(60.0, gt=0, description="seconds for a request to be answered")

    @model_validator(mode="after")
    def _check_memory(self) -> Limits:
        if self.memory < self.body:
            raise OtptError(f"The limit memory is {self.memory:,} bytes; expected at least {self.body:,}, as of body.")
        return self


class ServiceConfig(Frozen):
    """What :meth:`otpt.serve.Service.from_config` loads."""

    models: Mapping[str, str] = Field(
        {name: name for name in EMBEDDED}, description="name → backbone; the default first"
    )
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    method: str = Field(DEFAULT_METHOD, description="method of requests that name none")
    views: int = Field(64, ge=1, description="number of views of requests that set none")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of the views of requests that set none")
    classes: Mapping[str, ClassList] | Path = Field(
        default_factory=dict, description="class lists by name, or a folder of them"
    )
    groups: Mapping[str, JsonValue] | Path | None = Field(
        None, description="groups of the default class list, or a CSV file of them"
    )
    calibrations: Path | None = Field(None, description="folder of calibration files")
    text_cache: int = Field(2 << 30, ge=0, description="bytes of prepared class lists in memory")
    limits: Limits = Field(default_factory=Limits)
    hosts: tuple[str, ...] = Field((), description="hosts from which images are fetched by address")
    threads: int | None = Field(None, ge=0, description="threads that decode and augment (default: one per core)")


def public_name(spec: str) -> str:
    """Return the name of a model for clients, which are not told the folders of this machine.

    >>> public_name("local-dir:/data/models/birds"), public_name("ViT-B-16/openai")
    ('birds', 'ViT-B-16/openai')
    """
    prefix, _, place = spec.rpartition(":")
    path = Path(place if prefix in ("local-dir", "hf") else spec).expanduser()
    is_file = path.suffix.lower() in SUFFIXES
    if prefix == "local-dir" or is_file or path.exists():
        return (path.stem if is_file else path.absolute().name) or "model"
    return spec


def read_folder(folder: Path | None, suffix: str, read: Callable[[Path], _T]) -> dict[str, _T]:
    """Read all files of a folder by their stem; empty without a folder."""
    if folder is None:
        return {}
    paths = sorted(path for path in folder.glob(f"*{suffix}") if path.is_file())
    if not paths:
        raise OtptError(f"There is no folder {str(folder)!r} with files *{suffix}; check the path.")
    return {path.stem: read(path) for path in paths}


def read_token(path: Path | None) -> str | None:
    """Read a token, one line of printable ASCII, from a file."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read("token file", path, error) from None
    if len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise OtptError(
            f"The token in {str(path)!r} cannot be used; expected one line of at least {_SHORTEST_TOKEN} letters and "
            "digits, such as 'openssl rand -hex 32' prints."
        )
    return token
