"""What ``otpt evaluate`` needs for the medical systems: their options, settings, data sets and models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import Settings
from otpt.medical.baple.judge import BackdoorDataset
from otpt.medical.fpt.frozen import FROZEN_SIZE, FrozenViT, load_frozen_vit
from otpt.medical.promptsmooth import Smoothing
from otpt.medical.settings import CONFIDENCES, MedicalSettings

DEFAULTS = Smoothing()
_OPTIONS = ("trained", "sigma", "copies", "samples", "confidence", "keep_frozen", "frozen_size")

Maker = Callable[[], Dataset]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the methods of medical systems."""
    group = parser.add_argument_group("medical systems")
    group.add_argument(
        "--trained",
        nargs="+",
        metavar="FILE",
        help="what 'otpt train baple' and 'otpt train fpt' have made; METHOD:TARGET=FILE for BAPLe's own checkpoints",
    )
    add_noise_options(group)
    group.add_argument(
        "--confidence",
        choices=CONFIDENCES,
        help="PromptSmooth's: soft-max on the clean picture, or share of votes (default: clean)",
    )
    group.add_argument("--samples", type=int, metavar="N", help=f"noisy copies that vote (default: {DEFAULTS.samples})")
    add_frozen_options(group)


def add_noise_options(group: Any) -> None:
    """PromptSmooth's noise."""
    group.add_argument("--sigma", type=float, metavar="X", help=f"PromptSmooth's noise (default: {DEFAULTS.sigma})")
    group.add_argument(
        "--copies", type=int, metavar="N", help=f"noisy copies that a prompt is tuned on (default: {DEFAULTS.copies})"
    )


def add_frozen_options(group: Any) -> None:
    """FPT's frozen branch."""
    group.add_argument("--frozen-size", type=int, metavar="N", help=f"pixels FPT's ViT sees (default: {FROZEN_SIZE})")
    group.add_argument("--keep-frozen", type=Path, metavar="DIR", help="keep FPT's keys and values, 15 MB a picture")


def settings_for(options: argparse.Namespace, settings: Settings) -> Settings:
    """The settings themselves, or those of a medical system if its methods were asked for."""
    given = [name for name in _OPTIONS if getattr(options, name) is not None]
    if not any(method.system for method in settings.chosen):
        if given:
            raise OtptError(
                f"--{given[0].replace('_', '-')} is for the methods of medical systems; none was asked for."
            )
        return settings
    return MedicalSettings.extending(
        settings,
        trained=options.trained or (),
        smoothing=smoothing_for(options),
        confidence=options.confidence or CONFIDENCES[0],
        keep=options.keep_frozen,
    )


def smoothing_for(options: argparse.Namespace) -> Smoothing:
    """PromptSmooth's numbers, those that were given in place of the published ones."""
    names = ("sigma", "copies", "samples", "alpha", "selection")
    given = {name: getattr(options, name, None) for name in names}
    return Smoothing(**{name: value for name, value in given.items() if value is not None})


def case_makers(makers: list[Maker], settings: Settings) -> list[Maker]:
    """Each data set; for BAPLe also as it is with the trigger."""
    if settings.system != "baple":
        return makers
    return [each for make in makers for each in (make, partial(_with_trigger, make))]


def model_maker(options: argparse.Namespace, settings: Settings) -> Callable[[str], FrozenViT] | None:
    """How to load the model of a system that does not run on a CLIP; None for all others."""
    if settings.system != "fpt":
        return None
    return partial(frozen_on, options.backbone, options.precision, options.frozen_size or FROZEN_SIZE)


def frozen_on(spec: str, precision: str, size: int, device: str) -> FrozenViT:
    """FPT's frozen ViT on a device; of this module, so that worker processes can be sent it."""
    return load_frozen_vit(spec, device=device, precision=precision, size=size)


def _with_trigger(make: Maker) -> Dataset:
    return BackdoorDataset(make())
