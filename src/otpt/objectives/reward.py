"""A reward for the classes that a view takes for likely (RLCF)."""

from __future__ import annotations

from torch import Tensor

CLIP_SCORE = 2.5
"""CLIPScore is 2.5·max(cos, 0)."""


def clip_reward(logits: Tensor, cosines: Tensor, sampled_classes: float = 3) -> Tensor:
    """mean over views and their sampled classes of r·CE, CE_c = −log p_c: (…, k, C) → (…).

    The sampled classes of a view are those of its largest logits. r = 2.5·max(cos, 0) minus its mean over them, with
    the cosines (…, k, C) of the views and the texts at the init: the model itself gives the reward. No gradient
    flows through r.
    """
    sampled = logits.detach().argsort(dim=-1, descending=True, stable=True)[..., : int(sampled_classes)]
    score = CLIP_SCORE * cosines.gather(-1, sampled).clamp(min=0)
    reward = score - score.mean(dim=-1, keepdim=True)
    return -(reward * logits.log_softmax(dim=-1).gather(-1, sampled)).mean(dim=(-2, -1))
