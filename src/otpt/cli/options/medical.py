"""Options of ``otpt evaluate`` for BAPLe, FPT and PromptSmooth, and the models and data sets that they run on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from otpt.cli.options.models import DEFAULT_BACKBONE
from otpt.cli.options.spellings import flag
from otpt.errors import OtptError
from otpt.methods.fpt.variants import FROZEN_SIZE
from otpt.methods.promptsmooth.smoothing import Smoothing

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods import Method
    from otpt.methods.fpt import FrozenViT

DEFAULTS = Smoothing()
FPT_BACKBONE = "hf:google/vit-base-patch16-384"
_OF_CLIP = ("architecture", "quick_gelu")
_OF_SMOOTHING = ("sigma", "copies", "samples", "alpha")
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "trained": ("baple", "fpt"),
    **dict.fromkeys(_OF_SMOOTHING, ("promptsmooth",)),
    **dict.fromkeys(("keep_frozen", "frozen_size"), ("fpt",)),
}
"""Options, and the adaptations that alone look at them."""
_NOT_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("prompt", "prompt_tokens", "prompts", "context", "family"), ("baple", "fpt")),
    **dict.fromkeys(("views", "augmix", "features"), ("baple", "fpt", "promptsmooth")),
    **dict.fromkeys(_OF_CLIP, ("fpt",)),
}
"""Options, and the adaptations that do not look at them."""

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
    group.add_argument("--keep-frozen", type=Path, metavar="DIR", help="keep FPT's keys and values, 15 MB per image")


def chosen_frozen_size(options: argparse.Namespace) -> int:
    """Pixels of a side that FPT's ViT sees."""
    return FROZEN_SIZE if options.frozen_size is None else options.frozen_size


def refuse_unused(options: argparse.Namespace, methods: Sequence[Method]) -> None:
    """``OtptError`` for the first option that no method would look at."""
    adapts = list(dict.fromkeys(method.adapt for method in methods))
    trained = next((each for each in adapts if each in ("baple", "fpt")), None)
    if trained is not None and options.settings:
        raise OtptError(
            f"--set was given {options.settings[0]!r}, but an evaluation of {trained} tunes nothing: its numbers are "
            f"those of its training. Give it to 'otpt train {trained}', and leave it out here."
        )
    for name, served in _ONLY_FOR.items():
        if getattr(options, name, None) is not None and not set(adapts) & set(served):
            raise OtptError(f"{flag(name)} is for {' and '.join(served)}; no method of theirs was asked for.")
    for name, others in _NOT_FOR.items():
        if getattr(options, name, None) not in (None, []) and set(adapts) <= set(others):
            raise OtptError(f"{flag(name)} was given, but an evaluation of {adapts[0]} does not use it; leave it out.")
    for name in ("samples", "alpha"):
        if getattr(options, name, None) is not None and all(method.aggregate == "clean" for method in methods):
            raise OtptError(f"{flag(name)} was given, but no method votes; take 'promptsmooth+votes', or leave it out.")


def refuse_for_fpt(options: argparse.Namespace) -> None:
    """``OtptError`` for the first option of a CLIP, which FPT's training does not look at."""
    for name in _OF_CLIP:
        if getattr(options, name) is not None:
            raise OtptError(f"{flag(name)} was given, but 'otpt train fpt' does not use it; leave it out.")
    _refuse_compile(options)


def smoothing_for(options: argparse.Namespace) -> Smoothing:
    """PromptSmooth's numbers, those that were given in place of the published ones."""
    given = {name: getattr(options, name, None) for name in (*_OF_SMOOTHING, "selection")}
    return Smoothing(**{name: value for name, value in given.items() if value is not None})


def case_makers(makers: list[Maker], methods: Sequence[Method]) -> list[Maker]:
    """Each data set; for BAPLe also as it is with the trigger."""
    if methods[0].adapt != "baple":
        return makers
    return [each for make in makers for each in (make, partial(_with_trigger, make))]


def backbone_for(options: argparse.Namespace, methods: Sequence[Method]) -> str:
    """The model that was asked for; FPT's own in place of the default, which is a CLIP."""
    spec: str = options.backbone
    return FPT_BACKBONE if methods[0].adapt == "fpt" and spec == DEFAULT_BACKBONE else spec


def model_maker(options: argparse.Namespace, methods: Sequence[Method]) -> Callable[[str], FrozenViT] | None:
    """How to load the model of FPT, which does not run on a CLIP; None for all others."""
    if methods[0].adapt != "fpt":
        return None
    _refuse_compile(options)
    return partial(frozen_on, options.backbone, options.precision, chosen_frozen_size(options))


def _refuse_compile(options: argparse.Namespace) -> None:
    """``OtptError`` if FPT's frozen ViT is to be compiled."""
    if options.compile:
        raise OtptError("--compile was given, but the frozen ViT of FPT is not compiled; leave it out.")


def frozen_on(spec: str, precision: str, size: int, device: str) -> FrozenViT:
    """FPT's frozen ViT on a device; of this module, so that worker processes can be sent it."""
    from otpt.methods.fpt import load_frozen_vit

    return load_frozen_vit(spec, device=device, precision=precision, size=size)


def _with_trigger(make: Maker) -> Dataset:
    from otpt.data.backdoor import BackdoorDataset

    return BackdoorDataset(make())
