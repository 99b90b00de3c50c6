"""Attributes of an evaluation: which file serves which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from otpt.errors import OtptError
from otpt.evaluation.contexts import PLACE
from otpt.methods import Method, read_attributes
from otpt.methods.axes import ATTRIBUTES
from otpt.methods.inits.attributes import names_with_attributes
from otpt.runs.names import folder_name

Attributes: TypeAlias = Mapping[str, Sequence[str]]
AttributeSource: TypeAlias = "str | Path | Attributes"
"""A file, a pattern of files with ``{dataset}`` in it, or {class: [attribute, …]}."""


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
        source = read_attributes(Path(str(source).replace(PLACE, folder_name(dataset))).expanduser())
    found = source or {}
    names_with_attributes(class_names, found)  # says what is wrong
    return found
