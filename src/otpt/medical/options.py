"""Options of an evaluation that the medical systems add to the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from otpt.cli import options as o
from otpt.errors import OtptError
from otpt.medical import FPT_BACKBONE, FROZEN_SIZE

if TYPE_CHECKING:
    from otpt.medical.frozen_vit import FrozenViT
    from otpt.methods import Method

_TRAINED = ("baple", "fpt")
_USED_BY = {"trained": _TRAINED, "frozen_size": ("fpt",), "keep_frozen": ("fpt",)}
_SMOOTHING = ("sigma", "copies", "samples", "alpha", "selection")


@o.option_group("Medical systems")
class Options:
    """Options of the medical systems."""

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
        """Return the entries of ``Settings.plugins``."""
        from otpt.medical.promptsmooth import Smoothing

        numbers = {name: getattr(self, name) for name in _SMOOTHING if getattr(self, name) is not None}
        return {
            "trained": self.trained,
            "promptsmooth": {"smoothing": Smoothing(**numbers)},
            "fpt": {"keep": self.keep_frozen},
        }

    def check(self, methods: Sequence[Method], changed: Sequence[str]) -> None:
        """Raise ``OtptError`` for options that no method uses; ``changed`` are the words of ``--set``."""
        adapts = {method.adapt for method in methods}
        for field in fields(self):
            systems = _USED_BY.get(field.name, ("promptsmooth",))
            if getattr(self, field.name) not in (None, ()) and not adapts & set(systems):
                raise OtptError(
                    f"--{field.name.replace('_', '-')} is for {' and '.join(systems)}; none of these methods was given."
                )
        if adapts & set(_TRAINED) and changed:
            raise OtptError(
                f"--set was given {changed[0]!r}, but {methods[0].adapt} tunes nothing in an evaluation; give it to "
                "'otpt train'."
            )

    def loader(self, methods: Sequence[Method], model: o.ModelOptions) -> Callable[[str], FrozenViT] | None:
        """Return a function of a device that loads FPT's frozen ViT; None for other methods."""
        if methods[0].adapt != "fpt":
            return None
        if model.compile:
            raise OtptError("--compile was given, but the frozen ViT of FPT is not compiled; leave it out.")
        from otpt.medical.frozen_vit import load_frozen_vit

        size = FROZEN_SIZE if self.frozen_size is None else self.frozen_size
        return partial(load_frozen_vit, model.chosen or FPT_BACKBONE, size, model.precision)
