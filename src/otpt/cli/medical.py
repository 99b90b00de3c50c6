"""Options and commands of the medical systems, as a plugin of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from otpt.cli import options as o
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.cli.evaluate import Evaluation
    from otpt.methods import Method
    from otpt.methods.fpt import FrozenViT

COMMANDS = {
    "Evaluate methods": {
        "train baple": ("otpt.cli.train_medical:baple", "learn a context with a backdoor (BAPLe)"),
        "train fpt": ("otpt.cli.train_medical:fpt", "learn a side network on a frozen ViT (FPT)"),
        "certify": ("otpt.cli.certify:certify", "certified radii of PromptSmooth"),
    }
}
FPT_BACKBONE = "hf:google/vit-base-patch16-384"
FROZEN_SIZE = 512
_OWN_NETWORK = ("baple", "fpt")
_SMOOTHING = ("sigma", "copies", "samples", "alpha", "selection")


@o.option_group("Medical systems")
class MedicalOptions:
    """Options that only the medical systems use."""

    trained: Annotated[
        tuple[str, ...], o.option("files of 'otpt train baple' and 'otpt train fpt'", metavar="[METHOD:TARGET=]FILE")
    ] = ()
    sigma: Annotated[float | None, o.option("PromptSmooth's noise")] = None
    copies: Annotated[int | None, o.option("noisy copies that PromptSmooth tunes a prompt on")] = None
    samples: Annotated[int | None, o.option("noisy copies that vote")] = None
    selection: Annotated[int | None, o.option("noisy copies that choose the class")] = None
    alpha: Annotated[float | None, o.option("probability that a certificate is wrong")] = None
    frozen_size: Annotated[int | None, o.option(f"pixels that FPT's ViT sees (default: {FROZEN_SIZE})")] = None
    keep_frozen: Annotated[
        Path | None, o.option("store FPT's keys and values here, 15 MB per image", metavar="DIR")
    ] = None

    def settings(self) -> dict[str, Any]:
        """The fields of an evaluation's settings."""
        from otpt.methods.promptsmooth.smoothing import Smoothing

        numbers = {name: getattr(self, name) for name in _SMOOTHING}
        smoothing = Smoothing(**{name: value for name, value in numbers.items() if value is not None})
        plugins = {"promptsmooth": {"smoothing": smoothing}, "fpt": {"keep": self.keep_frozen}}
        return {"plugins": {"trained": self.trained, **plugins}}


def check_options(evaluation: Evaluation, methods: Sequence[Method]) -> None:
    """Raise for an option that none of the methods uses."""
    adapts = {method.adapt for method in methods}
    own = evaluation.medical
    used = {"trained": _OWN_NETWORK, "frozen_size": ("fpt",), "keep_frozen": ("fpt",)}
    for field in fields(own):
        systems = used.get(field.name, ("promptsmooth",))
        if getattr(own, field.name) not in (None, ()) and not adapts & set(systems):
            raise OtptError(
                f"--{field.name.replace('_', '-')} is for {' and '.join(systems)}; none of these methods was given."
            )
    if adapts & set(_OWN_NETWORK) and evaluation.method.set:
        raise OtptError(
            f"--set was given {evaluation.method.set[0]!r}, but {methods[0].adapt} tunes nothing in an evaluation; "
            "give it to 'otpt train'."
        )


def model_maker(evaluation: Evaluation, methods: Sequence[Method]) -> Callable[[str], FrozenViT] | None:
    """How to load the model of FPT, which is no CLIP; None for all others."""
    model = evaluation.model
    if methods[0].adapt != "fpt":
        return None
    if model.compile:
        raise OtptError("--compile was given, but the frozen ViT of FPT is not compiled; leave it out.")
    spec = FPT_BACKBONE if model.backbone == o.DEFAULT_BACKBONE else model.backbone
    return partial(load_frozen, spec, model.precision, evaluation.medical.frozen_size or FROZEN_SIZE)


def load_frozen(spec: str, precision: str, size: int, device: str) -> FrozenViT:
    """Load FPT's frozen ViT on a device; worker processes receive this function."""
    from otpt.methods.fpt import load_frozen_vit

    return load_frozen_vit(spec, device=device, precision=precision, size=size)
