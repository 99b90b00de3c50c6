"""Attributes of classes, such as {"cat": ["furry", "small"]}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from otpt.errors import OtptError, cannot_read
from otpt.files import parse_json, parse_toml


def read_attributes(path: str | Path) -> Mapping[str, Sequence[str]]:
    """Read {class: [attribute, …]} from a TOML or JSON file."""
    path = Path(path)
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise cannot_read("attribute file", path, error) from None
    try:
        table: object = parse_toml(text) if kind == "TOML" else parse_json(text)
        return TypeAdapter(dict[str, list[str]]).validate_python(table)
    except ValueError as error:  # pydantic's errors too
        reason = str(error).splitlines()[0]
        raise OtptError(
            f'The attribute file {str(path)!r} is not {kind} of the form {{"class": ["attribute", …], …}}: {reason}.'
        ) from None


def names_with_attributes(class_names: Sequence[str], attributes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return "{attribute} {name}" for each attribute of each class, class by class.

    >>> names_with_attributes(["cat", "dog"], {"dog": ["loyal"], "cat": ["furry"]})
    ('furry cat', 'loyal dog')
    """
    if not attributes:
        raise OtptError(
            "A method needs attributes of the classes, but none were given; pass a file with --set "
            "attributes=FILE, in Python get_method(…).override({'attributes': {class: [attribute, …]}})."
        )
    count = len(attributes.get(class_names[0], ()))
    for name in (*class_names, *attributes):
        texts = attributes.get(name, ())
        valid = not isinstance(texts, str) and all(isinstance(text, str) and text.strip() for text in texts)
        if name not in class_names or not valid or not texts or len(texts) != count:
            raise OtptError(
                f"{name!r} has the attributes {texts!r}; expected the same number of texts for each class, and for no "
                "other name."
            )
    return tuple(f"{attribute.strip()} {name}" for name in class_names for attribute in attributes[name])
