"""Sweeps over settings or prompts in one pass, with shared views, features and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.files import read_text
from otpt.methods import Method
from otpt.prompts import Prompt, published_templates

IMAGENET_80 = "imagenet-80"
"""Name of CLIP's 80 templates, instead of a file."""
_PLACE = "{}"


@checked
def sweep_method(method: Method, settings: Mapping[str, Sequence[str]]) -> list[Method]:
    """Return the method under every combination of the values of each setting.

    >>> from otpt.methods import get_method
    >>> [each.name for each in sweep_method(get_method("o-tpt"), {"lambda": ["0", "18"]})]
    ['o-tpt[lambda=0]', 'o-tpt[lambda=18]']
    """
    for name, values in settings.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise OtptError(f"The values of {name!r} are {values!r:.80}; expected a list, such as ['1', '6'].")
    variants = []
    for values in product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        changed = method.override(chosen)
        label = ",".join(f"{name}={value}" for name, value in chosen.items())
        variants.append(replace(changed, name=f"{method.name}[{label}]" if label else method.name))
    return variants


def parse_values(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse ``["lambda=0,1,2", "steps=1,2"]`` to the values of each setting."""
    values_of: dict[str, list[str]] = {}
    for item in words:
        name, equals, values = item.partition("=")
        parts = [value.strip() for value in values.split(",")]
        if not equals or not name or not all(parts):
            raise OtptError(f"--set was given {item!r}; expected NAME=VALUE,VALUE,…, such as lambda=0,1,2,6,18,54.")
        if name in values_of:
            raise OtptError(f"--set names {name!r} twice; give all its values after one {name}=.")
        values_of[name] = parts
    return values_of


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
