"""Learned prompts and attributes of an evaluation: which file serves which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from otpt.errors import OtptError
from otpt.methods.attributes import names_with_attributes, read_attributes
from otpt.registry import ATTRIBUTES, LEARNED
from otpt.runs.names import folder_name

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.prompts.learned import ContextSource, LearnedPrompt

Attributes: TypeAlias = Mapping[str, Sequence[str]]
AttributeSource: TypeAlias = "str | Path | Attributes"
"""A file, a pattern of files with ``{dataset}`` in it, or {class: [attribute, …]}."""


def find_contexts(
    sources: Sequence[ContextSource], dataset: str, methods: Sequence[Method]
) -> Mapping[str, LearnedPrompt]:
    """The learned prompts of a data set, by the init that they are for: "coop", "cocoop", "maple"."""
    from otpt.prompts.learned import read_contexts

    inits = {method.init: method.name for method in methods if method.init in LEARNED}
    found = read_contexts([_of_dataset(each, dataset) if isinstance(each, (str, Path)) else each for each in sources])
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


def find_attributes(
    source: AttributeSource | None, dataset: str, class_names: Sequence[str], methods: Sequence[Method]
) -> Attributes:
    """The attributes of a data set's classes; none if no method starts from them."""
    if not any(method.init == ATTRIBUTES for method in methods):
        if source is not None:
            named = ", ".join(method.name for method in methods)
            raise OtptError(f"Attributes were given, but no method starts from them ({named}); leave them out.")
        return {}
    if isinstance(source, (str, Path)):
        source = read_attributes(Path(_of_dataset(source, dataset)).expanduser())
    found = source or {}
    names_with_attributes(class_names, found)  # says what is wrong
    return found


def _suggestion(kind: str, methods: Sequence[Method]) -> str:
    plain = next((method.name for method in methods if method.init == "words"), None)
    return "" if plain is None else f"take {kind + '+' + plain!r} in place of {plain!r}, or "


def _of_dataset(path: str | Path, dataset: str) -> str:
    """The path with the data set's name in the place of ``{dataset}``."""
    return str(path).replace("{dataset}", folder_name(dataset))
