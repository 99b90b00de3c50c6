"""What a service is made of, in names and numbers: they can be sent to another process, models cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otpt.backbones import load_backbone
from otpt.methods.registry import DEFAULT_METHOD
from otpt.serve.library import read_calibrations, read_class_lists
from otpt.serve.limits import TEXT_CACHE, Limits
from otpt.serve.service import Service


@dataclass(frozen=True)
class Settings:
    """Of a :class:`otpt.serve.service.Service`, whose arguments are explained there.

    Attributes:
        models: name → backbone as :func:`otpt.backbones.load_backbone` takes it; the default first.
        device: of all models.
        precision: of all models.
        classes: folder of class lists.
        calibrations: folder of calibration files.
    """

    models: Mapping[str, str] = field(default_factory=lambda: {"pocket": "pocket"})
    device: str = "auto"
    precision: str = "float32"
    method: str = DEFAULT_METHOD
    views: int = 64
    classes: Path | None = None
    calibrations: Path | None = None
    text_cache: int = TEXT_CACHE
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ()
    together: int | None = None

    def service(self) -> Service:
        """The service; files are read and models loaded now."""
        classes = {} if self.classes is None else read_class_lists(self.classes)
        calibrations = {} if self.calibrations is None else read_calibrations(self.calibrations)
        models = {
            name: load_backbone(spec, device=self.device, precision=self.precision)
            for name, spec in self.models.items()
        }
        return Service(
            models,
            method=self.method,
            views=self.views,
            classes=classes,
            calibrations=calibrations,
            text_cache=self.text_cache,
            limits=self.limits,
            hosts=self.hosts,
            together=self.together,
        )
