"""Gates: do the confident views agree with the clean view? Where they do, an adaptation has little to mend."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.objectives.ensemble import strong_views
from otpt.objectives.entropy import select_fraction

Answer = tuple[bool, dict[str, float]]


def agreement(zero_shot: Tensor, gate_ratio: float = 0.1) -> Answer:
    """Adapt unless all of the int(V·ratio) most confident views have the clean view's label; zero_shot (V, C)."""
    return _unless_all_agree(zero_shot, select_fraction(zero_shot, gate_ratio))


def strong_agreement(zero_shot: Tensor, strong_ratio: float = 0.1) -> Answer:
    """USE's gate: adapt unless all views of Ω, none of which is the clean view, have the clean view's label."""
    return _unless_all_agree(zero_shot, strong_views(zero_shot, strong_ratio))


def cas(zero_shot: Tensor, cas_threshold: float = 0.5, gate_ratio: float = 0.1) -> Answer:
    """Adapt if CAS = Σ_{i∈S} c_i·[same label] / Σ_{i∈S} c_i is below the threshold; zero_shot (V, C).

    S are the int(V·ratio) most confident views, c_i = cos(p_i, p_0), and the label is compared with the clean view's.
    If all agree it is 1 exactly.
    """
    chosen = select_fraction(zero_shot, gate_ratio)
    p = zero_shot.softmax(dim=1)
    cosines = torch.cosine_similarity(p[chosen], p[:1], dim=1)
    agreeing = _agreeing(zero_shot, chosen)
    total = float(cosines.sum())  # 0 if all underflow, which a view of the clean view's label does not
    score = float((cosines * agreeing).sum()) / total if total else 0.0
    return score < cas_threshold, {"cas": score, "agreeing_views": float(agreeing.sum())}


def _agreeing(zero_shot: Tensor, chosen: Tensor) -> Tensor:
    labels = zero_shot.argmax(dim=1)
    return labels[chosen] == labels[0]


def _unless_all_agree(zero_shot: Tensor, chosen: Tensor) -> Answer:
    agreeing = _agreeing(zero_shot, chosen)
    return not bool(agreeing.all()), {"agreeing_views": float(agreeing.sum())}
