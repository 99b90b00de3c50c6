"""What a stream method takes an image for: its clean view, or the mean of its most confident views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from otpt.objectives.entropy import entropy_of_mean, select_fraction


@dataclass(frozen=True)
class Seen:
    """An image, as it is compared with others and kept.

    Attributes:
        feature: (D,); a mean over views is not made unit.
        logits: (C,).
        probabilities: (C,), the mean softmax of the views.
        entropy: (), H = −Σ_c p_c log p_c of ``probabilities``, in nats.
    """

    feature: Tensor
    logits: Tensor
    probabilities: Tensor
    entropy: Tensor

    @property
    def label(self) -> int:
        """The pseudo-label, arg max of the logits."""
        return int(self.logits.argmax())


def seen(features: Tensor, logits: Tensor, *, mean: bool, ratio: float) -> Seen:
    """The clean view of (V, D) and (V, C), or with ``mean`` the mean of the int(V·ratio) views of smallest entropy."""
    chosen = select_fraction(logits, ratio) if mean else torch.zeros(1, dtype=torch.long, device=logits.device)
    return Seen(
        features[chosen].mean(dim=0),
        logits[chosen].mean(dim=0),
        logits[chosen].softmax(dim=-1).mean(dim=0),
        entropy_of_mean(logits[chosen]),
    )
