"""Sweeps over settings or prompts in one pass, with shared views, features and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.files import read_text
from otpt.methods import Method
from otpt.prompts import Prompt, published_templates
from otpt.registry import FAMILIES

IMAGENET_80 = "imagenet-80"
"""Name of CLIP's 80 templates, instead of a file."""
_PLACE = "{}"

Value = str | int | float | bool
Plain = (str, int, float, bool)
VIEW_FIELDS: Mapping[str, TypeAdapter[int | bool]] = {
    "views": TypeAdapter(Annotated[int, Field(ge=1)]),
    "augmix": TypeAdapter(bool),
}
"""Fields of a protocol that a method can have for itself."""


def applies(method: Method, name: str) -> bool:
    """Return whether a value of a sweep changes a method: it has the setting, or uses several views."""
    if name in VIEW_FIELDS:
        return method.views is None and any(method.needs_views(family) for family in FAMILIES)
    return method.has_setting(name)


@checked
def sweep_method(method: Method, values: Mapping[str, Sequence[Value]]) -> list[Method]:
    """Return the method under every combination of values of the settings that it has; itself if it has none.

    Args:
        method: method to vary.
        values: values by the name of a setting of methods, of "views" or of "augmix".

    Returns:
        Methods named after their values.

    Example:
        >>> from otpt.methods import get_method
        >>> [variant.name for variant in sweep_method(get_method("o-tpt"), {"views": [8], "lambda": ["0", "18"]})]
        ['o-tpt[views=8,lambda=0]', 'o-tpt[views=8,lambda=18]']
    """
    for name, of_name in values.items():
        if isinstance(of_name, str) or not isinstance(of_name, Sequence):
            raise OtptError(f"The values of {name!r} are {of_name!r:.80}; expected a list, such as ['1', '6'].")
    settings = {name: of_name for name, of_name in values.items() if applies(method, name)}
    variants = []
    for combination in combinations(settings):
        changed = method.override({name: value for name, value in combination.items() if name not in VIEW_FIELDS})
        fields = {name: _view_field(name, value) for name, value in combination.items() if name in VIEW_FIELDS}
        variants.append(changed.replace(**fields, name=method.name + label_of(combination)))
    return variants


def combinations(values: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return every combination of one value of each setting."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def label_of(values: Mapping[str, Value]) -> str:
    """Return what follows the name of a method with these values: "[views=8,lambda=6]", or "" without any."""
    words = ",".join(
        f"{name}={'on' if value is True else 'off' if value is False else value}" for name, value in values.items()
    )
    return f"[{words}]" if words else ""


def read_values(sweep: object) -> dict[str, tuple[Value, ...]]:
    """Return the values of a sweep by the name of the setting, from a mapping or from texts "lambda=0,6,18"."""
    if isinstance(sweep, Mapping):
        items = [(str(name), of_name) for name, of_name in sweep.items()]
    elif isinstance(sweep, (list, tuple)):
        items = [_parsed(word) for word in sweep]
    else:
        raise OtptError(f"The sweep is {sweep!r:.80}; expected values by name, such as {{'views': [8, 32]}}.")
    values_of: dict[str, tuple[Value, ...]] = {}
    for given, values in items:
        name = given.replace("_", "-")
        if name in values_of:
            raise OtptError(f"The sweep names {name!r} twice; give all its values at once.")
        if not isinstance(values, (list, tuple)) or not values or not all(isinstance(one, Plain) for one in values):
            raise OtptError(
                f"The sweep over {name!r} has the values {values!r:.80}; expected a list of numbers or words."
            )
        twice = next((one for at, one in enumerate(values) if one in values[:at]), None)
        if twice is not None:
            raise OtptError(f"The sweep over {name!r} has the value {twice!r} twice; each is run once.")
        values_of[name] = tuple(values)
    return values_of


def _parsed(word: object) -> tuple[str, list[str]]:
    """Parse "lambda=0,1,2"."""
    name, equals, values = str(word).partition("=")
    parts = [value.strip() for value in values.split(",")]
    if not equals or not name or not all(parts):
        raise OtptError(f"--sweep was given {word!r}; expected NAME=VALUE,VALUE,…, such as lambda=0,1,2,6,18,54.")
    return name, parts


def _view_field(name: str, value: Value) -> int | bool:
    """Return the number of views, or whether they are mixed, from a value of a sweep."""
    try:
        return VIEW_FIELDS[name].validate_python(value)
    except ValidationError:
        expected = "a whole number from 1" if name == "views" else "on or off"
        raise OtptError(f"The sweep over {name!r} has the value {value!r}; expected {expected}.") from None


def read_templates(source: str | Path) -> list[Prompt]:
    """Read prompts, one template per line with ``{}`` for the class name; ``imagenet-80`` names CLIP's 80."""
    if str(source) == IMAGENET_80:
        return [template_prompt(sentence) for sentence in published_templates("templates-80").sentences]
    lines = map(str.strip, read_text(Path(source), "template file").splitlines())
    prompts = [template_prompt(line) for line in lines if line]
    if not prompts:
        raise OtptError(f"The template file {str(source)!r} is empty; expected lines such as 'a photo of a {{}}.'")
    return prompts


def template_prompt(template: str) -> Prompt:
    """Create a prompt from a sentence with ``{}``; a missing full stop is added, as in CLIP's templates.

    >>> template_prompt("a {} in a video game.").sentence("red panda")
    'a red panda in a video game.'
    """
    if template.count(_PLACE) != 1:
        raise OtptError(
            f"The template {template!r} has {template.count(_PLACE)} places {{}} for the class name; expected one."
        )
    text = template.strip()
    if not text.endswith("."):
        warnings.warn(f"The template {template!r} gets a full stop at its end, as every prompt here has.", stacklevel=2)
    return Prompt(text)
