"""ZERO: the vote of the most confident views."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.objectives.entropy import view_entropies
from otpt.objectives.fractions import fraction_of


def zero(logits: Tensor, logit_scale: float, vote_ratio: float = 0.3, vote_temperature: float = 0.0) -> Tensor:
    """q/Σq with q = Σ_{i∈S} softmax(cos(v_i, e_·)/T), S the int(V·ratio) most confident views: (V, C) → (C,).

    T = 0 is a vote: each view of S counts for its class. Where classes tie, the first of the remaining views, in
    order of entropy, whose class is among them decides: that class gets one vote more.

    Args:
        vote_ratio: fraction of the views that vote, rounded down (at least one).
        vote_temperature: T, on the scale of cosines; 2⁻¹⁰ gives the numbers of the released code.
    """
    order = view_entropies(logits).argsort(stable=True)
    count = fraction_of(len(logits), vote_ratio)
    voters, others = logits[order[:count]], logits[order[count:]]
    if vote_temperature == 0:
        votes = torch.zeros_like(voters[0]).index_add(0, voters.argmax(dim=1), torch.ones_like(voters[:, 0]))
    else:
        votes = (voters / (logit_scale * vote_temperature)).softmax(dim=1).sum(dim=0)
    tied = votes == votes.max()
    if int(tied.sum()) > 1:
        votes[_tie_break(tied, others if len(others) else voters)] += 1
    return votes / votes.sum()


def _tie_break(tied: Tensor, views: Tensor) -> Tensor:
    """The class of the first view (n, C) that is one of the ``tied`` (C,); if there is none, the first view's best.

    Where all views have voted, they decide in the same order.
    """
    labels = views.argmax(dim=1)
    found = labels[tied[labels]]
    return found[0] if len(found) else views[0].masked_fill(~tied, -torch.inf).argmax()
