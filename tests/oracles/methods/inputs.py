"""Inputs of inits, such as learned contexts, for the tiny CLIP of ``oracles.models.tiny``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from oracles.fields import other_values
from oracles.methods.maple import maple_state
from torch import Tensor

from otpt.methods import Method, get_method
from otpt.prompts import Prompt, Templates
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts
from otpt.registry import INITS, Preparation

WIDTH = 64
"""Width of the text tower and of the image tower."""
FEATURES = 32
CLASSES = ("cat", "dog", "sea", "tree", "car")
SMALL = {
    "fpp_steps": 2,
    "fpp_noises": 1,
    "copies": 4,
    "selection_votes": 6,
    "samples": 12,
    "batch": 6,
    "ecalp_rounds": 2,
    "bias_steps": 2,
}
"""Small values of settings that cost time."""


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _cocoop() -> CocoopContext:
    shapes = ((4, WIDTH), (2, FEATURES), (2,), (WIDTH, 2), (WIDTH,))
    return CocoopContext(*(_normal(*shape, seed=i) for i, shape in enumerate(shapes)))


def _maple() -> MaplePrompts:
    """Prompts of depth 2 with statistics of 17 tokens and 2 prompts."""
    state = maple_state("vit", 2)
    inner = {name.removeprefix("prompt_learner."): tensor.float() for name, tensor in state.items()}
    texts = ["ctx", *sorted(name for name in inner if name.startswith("compound_prompts_text."))]
    couplings = ["proj", *(f"compound_prompt_projections.{i}" for i in range(len(texts) - 1))]
    return MaplePrompts(
        torch.stack([inner[name] for name in texts]),
        torch.stack([inner[f"{name}.weight"] for name in couplings]),
        torch.stack([inner[f"{name}.bias"] for name in couplings]),
        means=_normal(2, 19, WIDTH, seed=3),
        variances=_normal(2, 19, WIDTH, seed=4).abs(),
    )


MADE: dict[type | str, Callable[[], object]] = {
    CoopContext: lambda: CoopContext(_normal(4, WIDTH), CLASSES),
    CocoopContext: _cocoop,
    MaplePrompts: _maple,
    Templates: lambda: Templates("mine", ["a sketch of a {}.", "the {}."]),
    Prompt: lambda: Prompt("an image of the"),
    "attributes": lambda: {name: ["small", "large"] for name in CLASSES},
}
"""Inputs by their class, or by name for plain data."""


def classes_in(annotation: object) -> Iterable[object]:
    """All types in an annotation."""
    yield annotation
    for part in get_args(annotation):
        yield from classes_in(part)


@cache
def made_input(init: type[Preparation], name: str) -> object:
    """A value of an input of an init."""
    annotation = init.model_fields[name].annotation
    for kind in (name, *classes_in(annotation)):
        if isinstance(kind, (str, type)) and kind in MADE:
            return MADE[kind]()
    pytest.fail(
        f"The init {init.name!r} has the input {name!r} of type {annotation}, which this test cannot make; add it to "
        "MADE in tests/oracles/methods/inputs.py."
    )


def other_input(init: type[Preparation], name: str) -> object:
    """Another value of an input of an init than :func:`with_inputs` sets."""
    field = init.model_fields[name]
    if field.default is not None:
        return next(value for value in other_values(field) if value != SMALL.get(name))
    made = made_input(init, name)
    if isinstance(made, Mapping):
        return {key: [*texts, "red"] for key, texts in made.items()}
    if isinstance(made, Templates):
        return replace(made, sentences=(*made.sentences, "a {}."))
    assert is_dataclass(made)
    tensor = next(field.name for field in fields(made) if isinstance(getattr(made, field.name), Tensor))
    return replace(made, **{tensor: -getattr(made, tensor)})


def with_inputs(name: str) -> Method:
    """A method by its name, with the inputs that its init needs and small numbers of steps."""
    method = get_method(name)
    init = INITS[method.init]
    needed = {field: made_input(init, field) for field, info in init.model_fields.items() if info.default is None}
    small = {key: value for key, value in SMALL.items() if key in {**method.defaults, **method.input_settings}}
    changes: Mapping[str, Any] = {**needed, **small}
    return method.override(changes) if changes else method
