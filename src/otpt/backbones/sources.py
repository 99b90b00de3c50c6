"""What a source of models gives, and the registry of sources by the prefix of a spec."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple


class Parts(NamedTuple):
    """What a backbone is made of."""

    model: Any  # with open_clip's interface, see ClipBackbone
    tokenizer: Any
    preprocess: Any  # see read_preprocessing
    architecture: str


class Source(NamedTuple):
    """A way to load models."""

    form: str  # how it is written: "hf:ORG/NAME"
    description: str
    load: Callable[[str, bool | None], Parts]


SOURCES: dict[str, Source] = {}
"""By prefix: "hf" for specs such as "hf:ORG/NAME"; by the whole spec for forms without a colon."""


def register_source(form: str, description: str, load: Callable[[str, bool | None], Parts]) -> None:
    """Register a form of naming a model, such as ``hf:ORG/NAME``; ``otpt models`` lists it.

    Args:
        form: prefix, colon and what follows; or a name on its own.
        description: one line for the list of models.
        load: from what follows the colon, and the user's choice of ``quick_gelu``, to the parts of a backbone.
    """
    SOURCES[form.partition(":")[0]] = Source(form, description, load)


class QuickGeluWarning(UserWarning):
    """The activation of a model may not be the one its weights were trained with."""


def choose_gelu(asked: bool | None, needed: bool | None, named: bool | None, source: str) -> bool:
    """Whether to build QuickGELU, x·σ(1.702x), instead of GELU.

    ``asked`` is the user's choice and takes precedence; ``needed`` is what the weights were trained with, where known;
    ``named`` is what a named architecture says. Contradictions and an unknown activation are warned of.
    """
    words = {True: "QuickGELU", False: "GELU"}
    if asked is not None:
        if needed is not None and asked != needed:
            _warn(
                f"{source} was trained with {words[needed]}, but runs with {words[asked]} as requested: its "
                "predictions will be off."
            )
        return asked
    if needed is not None:
        if named is not None and named != needed:
            _warn(
                f"The architecture named for {source} has {words[named]}, but the weights were trained with "
                f"{words[needed]}, which is used; pass quick_gelu={named} to insist."
            )
        return needed
    if named is None:
        _warn(
            f"The weights of {source} do not show whether they were trained with GELU or QuickGELU; GELU is used. Pass "
            "quick_gelu=True or False to choose."
        )
    return bool(named)


def _warn(message: str) -> None:
    warnings.warn(message, QuickGeluWarning, stacklevel=6)  # the caller of load_backbone
