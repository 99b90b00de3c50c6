"""Adaptations and gates that are functions: called image by image, for any group of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from otpt.methods.axes import ADAPTATIONS, GATES, NONE, STATE
from otpt.methods.method import Method
from otpt.methods.output import Adapted
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.methods.running.calling import Available, Extras, call_function, call_gate

GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 if it kept zero-shot."""


@dataclass(frozen=True)
class GateAnswer:
    """Whether a method adapts an image, and what the gate says beside it."""

    is_open: bool = True
    extras: Extras = field(default_factory=dict)


def ask_gate(method: Method, available: Available, settings: Mapping[str, float], name: str) -> GateAnswer:
    """Whether a method adapts an image."""
    if method.gate == NONE:
        return GateAnswer()
    return GateAnswer(*call_gate(GATES[method.gate], available, settings, name))


def adapt_by_function(
    method: Method,
    initial: Adapted,
    available: Callable[[int], Available],
    logits: Callable[[int, Tensor], Tensor],
    settings: Mapping[str, float],
    gates: Sequence[GateAnswer],
    names: Sequence[str],
    state: dict[str, Any],
) -> Adapted:
    """B images by a function of its own, one after the other, as a stream's ``state`` asks for.

    Where the gate is closed the function is not called. ``logits`` gives the logits (V, C) of an image under text
    features (C, D).
    """
    value = ADAPTATIONS[method.adapt]
    rows: list[Tensor] = []
    texts: list[Tensor] = []
    extras: list[Extras] = []
    for i, name in enumerate(names):
        found = initial.text_features(i) if value.gives_texts else initial.view_logits(i)
        more: Extras = {}
        own: Available = {**available(i), "logits": partial(initial.view_logits, i), STATE: lambda: state}
        if gates[i].is_open:
            found, more = call_function(value, "adaptation", own, settings, tuple(found.shape), name)
        texts.append(found if value.gives_texts else initial.text_features(i))
        rows.append(logits(i, found) if value.gives_texts else found)
        extras.append(more)
    columns = dict(initial.extras)
    if value.gives_texts:
        columns["mean_cosine"] = torch.stack([mean_cosine(each) for each in texts])
    for key in dict.fromkeys(key for more in extras for key in more):
        columns[key] = torch.tensor([more.get(key, torch.nan) for more in extras], dtype=torch.float64)
    return Adapted(
        torch.stack([each[0] for each in rows]), rows.__getitem__, initial.skipped, columns, texts.__getitem__
    )


def gated(adapted: Adapted, initial: Adapted, gates: Sequence[GateAnswer]) -> Adapted:
    """Adapted where the gate is open, as at the init elsewhere."""
    choice = torch.tensor([each.is_open for each in gates], device=adapted.logits.device)
    extras = {
        name: torch.where(
            choice.to(values.device), values, initial.extras.get(name, torch.full_like(values, torch.nan))
        )
        for name, values in adapted.extras.items()
    }
    for key in dict.fromkeys(key for each in gates for key in each.extras):
        extras[key] = torch.tensor([each.extras.get(key, torch.nan) for each in gates], dtype=torch.float64)
    return Adapted(
        torch.where(choice[:, None], adapted.logits, initial.logits),
        lambda i: (adapted if gates[i].is_open else initial).view_logits(i),
        adapted.skipped & choice.to(adapted.skipped.device),
        {**extras, GATED: choice.double()},
        lambda i: (adapted if gates[i].is_open else initial).text_features(i),
    )
