"""∇_θ of view objectives at the initial context: what all configs of an image share, and later runs may reuse.

A gradient at θ₀ depends on the image's features and on the text side, not on weights, learning rates or what else a
config minimises. So configs share it within a call, and a :class:`GradientStore` keeps it from one call to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from otpt.entropy import SELECTED_BY
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.passes import in_passes
from otpt.methods.prompt_tuning.text_side import TextSide
from otpt.objectives import logit_range
from otpt.registry import OBJECTIVES
from otpt.transfers import to_host


@dataclass(frozen=True)
class ViewObjective:
    """A view objective as its gradient knows it.

    Attributes:
        reference: see :class:`TuningConfig`; "" where it takes none.
        count: of selected views.
        selection: the rule that selects them.
        settings: those of the config that are the objective's own.
        frozen_below: see :class:`TuningConfig`.
    """

    name: str
    reference: str
    count: int
    selection: str = "confident"
    settings: tuple[tuple[str, float], ...] = ()
    frozen_below: float = 0.0

    @property
    def facts(self) -> list[object]:
        """What it is made of, as plain data."""
        plain: list[object] = [self.name, self.reference, self.count]
        usual = self.selection == "confident" and not self.settings
        found = plain if usual else [*plain, self.selection, [list(each) for each in self.settings]]
        return [*found, {"frozen_below": self.frozen_below}] if self.frozen_below else found


class GradientStore(Protocol):
    """Gradients (n, W) at θ₀ of one image under one text side, as they were computed.

    Attributes:
        on_host: whether it takes them on the host; where they were computed otherwise.
    """

    on_host: bool

    def get(self, objective: ViewObjective) -> Tensor | None:
        """The gradient where it is computed, or None if it is not known."""

    def put(self, objective: ViewObjective, gradient: Tensor) -> None:
        """Keep a gradient."""


class HeldGradients:
    """A :class:`GradientStore` in memory, that of the device, for as long as it lives."""

    on_host = False

    def __init__(self) -> None:
        self._held: dict[ViewObjective, Tensor] = {}

    def get(self, objective: ViewObjective) -> Tensor | None:
        """See :class:`GradientStore`."""
        return self._held.get(objective)

    def put(self, objective: ViewObjective, gradient: Tensor) -> None:
        """See :class:`GradientStore`."""
        self._held[objective] = gradient


def view_objective(name: str, config: TuningConfig, views: int) -> ViewObjective:
    """A config's objective ``name`` on ``views`` views; the entropy is the same whatever the reference."""
    found = OBJECTIVES[name]
    reference = config.reference if found.takes_range else ""
    settings = tuple(found.own_settings(dict(config.settings)).items())
    count = config.selected_count(views)
    return ViewObjective(name, reference, count, config.selection, settings, config.frozen_below)


def init_gradients(
    text: TextSide, views: Tensor, objective: ViewObjective, stores: Sequence[GradientStore] | None = None
) -> Tensor:
    """∇_θ of a view objective at θ₀ for each image: (B, V, D) → (B, n, W).

    ``stores``, one per image, are asked first, and keep what had to be computed.
    """
    if stores is None:
        return _computed(text, views, objective)
    found = {i: known for i, store in enumerate(stores) if (known := store.get(objective)) is not None}
    missing = [i for i in range(len(stores)) if i not in found]
    if missing:
        computed = _computed(text, torch.stack([views[i] for i in missing]), objective)
        kept = to_host([computed])[0] if stores[0].on_host else computed
        for i, gradient, own in zip(missing, computed, kept, strict=True):
            found[i] = gradient
            stores[i].put(objective, own)
    return torch.stack([found[i] for i in range(len(stores))])


def _computed(text: TextSide, views: Tensor, objective: ViewObjective) -> Tensor:
    cotangents = [_cotangent(text, image, objective) for image in views]
    return in_passes(text.linearisation.vjp, torch.stack(cotangents), size=text.contexts_per_pass)


def _cotangent(text: TextSide, image: Tensor, objective: ViewObjective) -> Tensor:
    """∂L/∂E of one image: (V, D) → (C, D)."""
    logits = text.logits(image, text.text_features)
    chosen = SELECTED_BY[objective.selection](logits, objective.count)
    with torch.enable_grad():
        leaf = logits[chosen].requires_grad_()
        row = logits[0] if objective.reference == "clean" else leaf[0]
        own = logits[chosen]
        available = {"zero_shot": own, "cosines": text.cosines(own), "all_views": logits}
        available |= {"logits": leaf, **dict.fromkeys(("current_range", "initial_range"), logit_range(row))}
        value = OBJECTIVES[objective.name](available, dict(objective.settings))
    (gradient,) = torch.autograd.grad(value, leaf)
    return text.pull_back(gradient, image[chosen])
