"""What ``otpt evaluate`` needs for the medical systems: their options, settings, data sets and models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from otpt.cli.options import DEFAULT_BACKBONE, flag
from otpt.errors import OtptError
from otpt.medical.fpt.recipe import FROZEN_SIZE
from otpt.medical.promptsmooth.smoothing import CONFIDENCES, Smoothing

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.evaluation import Settings
    from otpt.medical.fpt import FrozenViT
    from otpt.methods import Method

DEFAULTS = Smoothing()
FPT_BACKBONE = "hf:google/vit-base-patch16-384"
_TRAINED = ("baple", "fpt")
"""Systems whose texts and numbers were settled by their training."""
_OF_CLIP = ("architecture", "quick_gelu")
_SERVED = {
    "trained": _TRAINED,
    **dict.fromkeys(("sigma", "copies", "samples", "alpha", "confidence"), ("promptsmooth",)),
    **dict.fromkeys(("keep_frozen", "frozen_size"), ("fpt",)),
}
"""Options of medical systems, and whose evaluation they reach."""
_OF_TUNING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("prompt", "prompt_tokens", "prompts", "context", "family"), ("promptsmooth",)),
    **dict.fromkeys(("views", "augmix", "features"), ()),
    **dict.fromkeys(_OF_CLIP, ("baple", "promptsmooth")),
}
"""Options of test-time tuning and its models, and which medical systems they reach."""

Maker: TypeAlias = "Callable[[], Dataset]"


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
    group.add_argument(
        "--alpha", type=float, metavar="X", help=f"level of the votes' test for a majority (default: {DEFAULTS.alpha})"
    )
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
    from otpt.medical.settings import MedicalSettings

    systems = [method.system for method in settings.chosen if method.system]
    given = [name for name in _SERVED if getattr(options, name) is not None]
    if not systems:
        if given:
            raise OtptError(f"{flag(given[0])} is for the methods of medical systems; none was asked for.")
        return settings
    refuse_set(options, settings.chosen)
    _refuse_unused(options, systems[0], given)
    return MedicalSettings.extending(
        settings,
        trained=options.trained or (),
        smoothing=smoothing_for(options),
        confidence=options.confidence or CONFIDENCES[0],
        keep=options.keep_frozen,
    )


def refuse_set(options: argparse.Namespace, methods: Sequence[Method]) -> None:
    """``OtptError`` if ``--set`` was given for methods whose numbers were settled by their training."""
    system = next((method.system for method in methods if method.system in _TRAINED), None)
    if system is not None and options.settings:
        raise OtptError(
            f"--set was given {options.settings[0]!r}, but an evaluation of {system} tunes nothing: its numbers are "
            f"those of its training. Give it to 'otpt train {system}', and leave it out here."
        )


def _refuse_unused(options: argparse.Namespace, system: str, given: Sequence[str]) -> None:
    """``OtptError`` for the first option that an evaluation of this system would not look at."""
    of_tuning = [name for name in _OF_TUNING if getattr(options, name, None) not in (None, [])]
    for name in (*given, *of_tuning):
        served = {**_SERVED, **_OF_TUNING}[name]
        if system not in served:
            others = f"of the medical systems it is for {' and '.join(served)}" if served else "leave it out"
            raise OtptError(f"{flag(name)} was given, but an evaluation of {system} does not use it; {others}.")
    for name in ("samples", "alpha"):
        if getattr(options, name) is not None and options.confidence != "votes":
            raise OtptError(f"{flag(name)} was given without --confidence votes; expected both.")


def refuse_for_fpt(options: argparse.Namespace) -> None:
    """``OtptError`` for the first option of a CLIP, which FPT's training does not look at."""
    for name in _OF_CLIP:
        if getattr(options, name) is not None:
            raise OtptError(f"{flag(name)} was given, but 'otpt train fpt' does not use it; leave it out.")


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


def backbone_for(options: argparse.Namespace, settings: Settings) -> str:
    """The model that was asked for; FPT's own in place of the default, which is a CLIP."""
    spec: str = options.backbone
    return FPT_BACKBONE if settings.system == "fpt" and spec == DEFAULT_BACKBONE else spec


def model_maker(options: argparse.Namespace, settings: Settings) -> Callable[[str], FrozenViT] | None:
    """How to load the model of a system that does not run on a CLIP; None for all others."""
    if settings.system != "fpt":
        return None
    return partial(frozen_on, options.backbone, options.precision, options.frozen_size or FROZEN_SIZE)


def frozen_on(spec: str, precision: str, size: int, device: str) -> FrozenViT:
    """FPT's frozen ViT on a device; of this module, so that worker processes can be sent it."""
    from otpt.medical.fpt import load_frozen_vit

    return load_frozen_vit(spec, device=device, precision=precision, size=size)


def _with_trigger(make: Maker) -> Dataset:
    from otpt.medical.baple.judge import BackdoorDataset

    return BackdoorDataset(make())
