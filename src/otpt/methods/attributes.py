"""Attributes of classes, such as {"cat": ["furry", "small"]}: given by the user, or read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, cannot_read
from otpt.files import parse_json, parse_toml


def read_attributes(path: str | Path) -> Mapping[str, Sequence[str]]:
    """{class: [attribute, …]} of a file, TOML if it is called so, else JSON."""
    path = Path(path)
    where = f"The attribute file {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise cannot_read("attribute file", path, error) from None
    try:
        found: Any = parse_toml(text) if path.suffix == ".toml" else parse_json(text)
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise OtptError(f"{where} is not valid {kind}: {error}.") from None
    if not isinstance(found, dict) or not found:
        raise OtptError(f'{where} has no classes; expected {{"class": ["attribute", …], …}}.')
    for name, given in found.items():
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise OtptError(f"{where} has {given!r:.80} for the class {name!r}; expected a list of texts.")
    return found


def names_with_attributes(class_names: Sequence[str], attributes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """ "{attribute} {name}" for each attribute of each class, those of a class in a row; an error if they do not fit.

    >>> names_with_attributes(["cat", "dog"], {"dog": ["loyal"], "cat": ["furry"]})
    ('furry cat', 'loyal dog')
    """
    if not attributes:
        raise OtptError(
            "No attributes of the classes were given, which a method starts from; give their file with --attributes "
            "(in Python attributes={class: [attribute, …]})."
        )
    for name in attributes:
        if name not in class_names:
            raise OtptError(
                f"There are attributes for {name!r}, which is not among the {len(class_names)} class names; expected "
                "attributes of these classes and of no others."
            )
    first = class_names[0]
    for name in class_names:
        given = attributes.get(name, ())
        if isinstance(given, str):
            raise OtptError(f"The attributes of the class {name!r} are the single text {given!r}; expected a list.")
        if not given:
            raise OtptError(f"The class {name!r} has no attributes; expected the same number for each class.")
        if len(given) != len(attributes[first]):
            raise OtptError(
                f"The class {name!r} has {len(given)} attributes, but {first!r} has {len(attributes[first])}; expected "
                "the same number for each class."
            )
        for each in given:
            if not isinstance(each, str) or not each.strip():
                raise OtptError(f"An attribute of the class {name!r} is {each!r}; expected some text.")
    return tuple(f"{attribute.strip()} {name}" for name in class_names for attribute in attributes[name])


def attribute_digest(names: Sequence[str]) -> str:
    """32 hexadecimal digits of what :func:`names_with_attributes` gives."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]
