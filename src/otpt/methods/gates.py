"""Gates: decide from the agreement of confident views with the clean view whether an image is adapted."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.objectives import select_fraction, strong_views
from otpt.registry import Fraction, Probability, gate

Answer = tuple[bool, dict[str, float]]


@gate(source="Jiang et al., 2026 (CAS): consistency alone")
def agreement(zero_shot: Tensor, gate_ratio: Fraction = 0.1) -> Answer:
    """Adapt unless all of the most confident views have the clean view's label.

    The most confident views are the int(V·ratio) of lowest entropy; ``zero_shot`` is (V, C).
    """
    return _unless_all_agree(zero_shot, select_fraction(zero_shot, gate_ratio))


@gate(source="Jiang et al., ICML 2026 (USE)")
def strong_agreement(zero_shot: Tensor, strong_ratio: Fraction = 0.1) -> Answer:
    """USE's gate: adapt unless all strong views have the clean view's label.

    The strong views Ω never contain the clean view.
    """
    return _unless_all_agree(zero_shot, strong_views(zero_shot, strong_ratio))


# The paper sets the threshold by the fraction of a test set that is to be skipped; a number for single images is ours.
@gate(source="Jiang et al., 2026 (CAS)")
def cas(zero_shot: Tensor, cas_threshold: Probability = 0.5, gate_ratio: Fraction = 0.1) -> Answer:
    """CAS: adapt where the confident views that agree with the clean one hold less than a threshold of the similarity.

    CAS = Σ_{i∈S} c_i·[same label] / Σ_{i∈S} c_i; zero_shot (V, C). S are the int(V·ratio) most confident views,
    c_i = cos(p_i, p_0), and the label is compared with the clean view's. If all agree it is 1 exactly.
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
