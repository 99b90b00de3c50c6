"""Adaptations and gates that are functions: called image by image, for any group of methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from otpt.methods.axes import ADAPTATIONS, GATES, NONE, STATE
from otpt.methods.calling import Available, call_function, call_gate
from otpt.methods.method import Method
from otpt.methods.output import Adapted

GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 if it kept zero-shot."""


def gate_is_open(method: Method, available: Available, name: str) -> bool:
    """Whether a method adapts an image."""
    return method.gate == NONE or call_gate(GATES[method.gate], available, name)


def adapt_by_function(
    method: Method,
    initial: Adapted,
    available: Callable[[int], Available],
    open_: Sequence[bool],
    names: Sequence[str],
    state: dict[str, Any],
) -> Adapted:
    """Logits of B images by a function of its own, one after the other, as a stream's ``state`` asks for.

    Where the gate is closed the function is not called.
    """
    value = ADAPTATIONS[method.adapt]
    made = []
    for i, name in enumerate(names):
        zero_shot = initial.view_logits(i)
        if open_[i]:
            own: Available = {**available(i), "logits": partial(initial.view_logits, i), STATE: lambda: state}
            made.append(call_function(value, "adaptation", own, tuple(zero_shot.shape), name))
        else:
            made.append(zero_shot)
    return Adapted(torch.stack([rows[0] for rows in made]), made.__getitem__, initial.skipped, initial.extras)


def gated(adapted: Adapted, initial: Adapted, open_: Sequence[bool]) -> Adapted:
    """Adapted where the gate is open, as at the init elsewhere."""
    choice = torch.tensor(list(open_), device=adapted.logits.device)
    extras = {
        name: torch.where(choice.to(values.device), values, initial.extras[name])
        for name, values in adapted.extras.items()
    }
    return Adapted(
        torch.where(choice[:, None], adapted.logits, initial.logits),
        lambda i: (adapted if open_[i] else initial).view_logits(i),
        adapted.skipped & choice.to(adapted.skipped.device),
        {**extras, GATED: choice.double()},
    )
