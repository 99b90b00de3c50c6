"""What a service is made of, in names and numbers: they can be sent to another process, models cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otpt.backbones import load_backbone
from otpt.calibration import Calibration, read_calibration
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError, cannot_read
from otpt.serve.http.queries import served_method
from otpt.serve.limits import TEXT_CACHE, Limits
from otpt.serve.service import Service
from otpt.settings import DEFAULT_METHOD

_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """Of a :class:`otpt.serve.service.Service`, whose arguments are explained there.

    Attributes:
        models: name → backbone as :func:`otpt.backbones.load_backbone` takes it; the default first.
        device: of all models.
        precision: of all models.
        compile: the image towers of all models, when they are loaded.
        classes: class lists by name, or a folder of them.
        calibrations: folder of calibration files.
    """

    models: Mapping[str, str] = field(default_factory=lambda: {"pocket": "pocket"})
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    method: str = DEFAULT_METHOD
    views: int = 64
    seed: int = 0
    classes: Mapping[str, ClassList] | Path = field(default_factory=dict)
    calibrations: Path | None = None
    text_cache: int = TEXT_CACHE
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ()
    together: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise OtptError(f"The seed is {self.seed}; expected a whole number from 0 to 2^63 - 1.")

    def service(self) -> Service:
        """The service; files are read and models loaded now."""
        served_method(self.method)  # refused before a large model is read
        classes = read_class_lists(self.classes) if isinstance(self.classes, Path) else self.classes
        calibrations = {} if self.calibrations is None else read_calibrations(self.calibrations)
        models = {
            name: load_backbone(spec, device=self.device, precision=self.precision, compile=self.compile)
            for name, spec in self.models.items()
        }
        return Service(
            models,
            method=self.method,
            views=self.views,
            seed=self.seed,
            classes=classes,
            calibrations=calibrations,
            text_cache=self.text_cache,
            limits=self.limits,
            hosts=self.hosts,
            together=self.together,
            threads=self.threads,
        )


def read_class_lists(folder: Path) -> Mapping[str, ClassList]:
    """``pets.txt`` → the class list "pets"; one class per line, settings in comments as :mod:`otpt.data.classes`."""
    return {path.stem: read_class_list(path) for path in _files(folder, ".txt", "class lists")}


def read_calibrations(folder: Path) -> Mapping[str, Calibration]:
    """``pets.json`` → the calibration "pets", as ``otpt calibrate`` wrote it."""
    return {path.stem: read_calibration(path) for path in _files(folder, ".json", "calibration files")}


def _files(folder: Path, suffix: str, what: str) -> list[Path]:
    if not folder.is_dir():
        raise OtptError(f"There is no folder {str(folder)!r} of {what}; expected one with files *{suffix}.")
    found = sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())
    if not found:
        raise OtptError(f"The folder {str(folder)!r} holds no {what}; expected files *{suffix}.")
    return found


def named_models(given: list[str]) -> dict[str, str]:
    """``NAME=SPEC`` or ``SPEC``, which is its own name; each name once."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, spec = each.partition("=")
        name, spec = (name, spec) if equals else (each, each)
        if not name or not spec:
            raise OtptError(f"--models was given {each!r}; expected a backbone, or NAME=BACKBONE.")
        if name in found:
            raise OtptError(f"--models was given {name!r} twice; give each a name of its own, as NAME=BACKBONE.")
        found[name] = spec
    return found


def read_token(path: Path | None) -> str | None:
    """The token in a file: one line of printable ASCII."""
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
