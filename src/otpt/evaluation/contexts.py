"""Learned prompts of an evaluation: which file serves which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.methods.axes import LEARNED
from otpt.runs.names import folder_name

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.prompts.learned import ContextSource, LearnedPrompt

PLACE = "{dataset}"
"""In a source's path: the name of the data set."""


def find_contexts(
    sources: Sequence[ContextSource], dataset: str, methods: Sequence[Method]
) -> Mapping[str, LearnedPrompt]:
    """The learned prompts of a data set, by the init that they are for: "coop", "cocoop", "maple"."""
    from otpt.prompts.learned import read_contexts

    inits = {method.init: method.name for method in methods if method.init in LEARNED}
    found = read_contexts([_of_dataset(source, dataset) for source in sources])
    for kind in found:
        if kind not in inits:
            raise OtptError(
                f"A prompt of the kind {kind!r} was given, but no method starts from it; "
                f"{_suggestion(kind, methods)}leave the prompt out."
            )
    for init, name in inits.items():
        if init not in found:
            raise OtptError(
                f"Method {name!r} starts from a learned prompt of the kind {init!r}; give its file with --context (in "
                f"Python contexts=[…]), or make one with 'otpt train'."
            )
    return found


def _suggestion(kind: str, methods: Sequence[Method]) -> str:
    plain = next((method.name for method in methods if method.init == "words"), None)
    return "" if plain is None else f"take {kind + '+' + plain!r} in place of {plain!r}, or "


def _of_dataset(source: ContextSource, dataset: str) -> ContextSource:
    """The source with the data set's name in its path."""
    return str(source).replace(PLACE, folder_name(dataset)) if isinstance(source, (str, Path)) else source
