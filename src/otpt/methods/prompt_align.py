"""PromptAlign: MaPLe's prompts are tuned so that the image's tokens look like those of the source images."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods.caches import in_first_row
from otpt.methods.maple import MapleState
from otpt.methods.prompt_tuning.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean, select_fraction
from otpt.prompts.learned import visual_prompts
from otpt.registry import Fraction, NonNegative, Positive, adaptation

_BLOCKS = 2
"""The released loop over layers 0 … 2 ends one early."""


@adaptation(
    init="maple",
    only={"init": ("maple",)},
    augmix=False,
    source="Abdul Samadh et al., NeurIPS 2023, arXiv 2311.01459",
    settings={"align_rate": {"fine-grained": 5e-4, "shift": 4e-2}},
)
def prompt_align(
    inputs: Tensor,
    logits: Tensor,
    prompt_state: MapleState,
    align_weight: NonNegative = 100 / 3,
    align_rate: Positive = 5e-4,
    align_decay: NonNegative = 0.01,
    align_ratio: Fraction = 0.1,
) -> Tensor:
    """PromptAlign: one step on MaPLe's prompts that also aligns token statistics with those of source images.

    L = H(p̄) + w·Σ_l (½·mean|m_l − M_l| + ½·mean|v_l − S_l|) over the int(V·ratio) most confident views. m_l and v_l
    are mean and variance over these views of the tokens that enter block l = 0, 1 of the image tower, M_l and S_l the
    same over source images; w = 100/3, published as 100 over three layers. M and S are part of a file of MaPLe's
    prompts that ``otpt train maple`` made. Then one AdamW step on all prompts and couplings.

    Args:
        inputs: (V, T, W_v) tokens of the views.
        logits: (V, C).

    Returns:
        (V, C): the first row is the prediction, further views keep their zero-shot logits.
    """
    source = source_moments(prompt_state)
    logits_here = logits.to(inputs.device)
    chosen = select_fraction(logits_here, align_ratio)
    selected = inputs[chosen]
    text, weights, biases = (each.detach().requires_grad_() for each in prompt_state.split(prompt_state.init))
    with torch.enable_grad():
        leaf = logits_here[chosen].requires_grad_()
        entropy = entropy_of_mean(leaf)
        entering = prompt_state.tower.block_inputs(selected, visual_prompts(text, weights, biases), _BLOCKS)
        distance = alignment(entering, *source)
    (of_logits,) = torch.autograd.grad(entropy, leaf)
    of_distance = torch.autograd.grad(distance, (text, weights, biases), allow_unused=True)
    parts = zip(of_distance, (text, weights, biases), strict=True)
    flat = torch.cat([torch.zeros(own.numel()).to(own) if each is None else each.flatten() for each, own in parts])
    gradient = prompt_state.pull_back(of_logits[None], selected[None], leaf.detach()[None])[0] + align_weight * flat
    context = adamw_first_step(prompt_state.init, gradient, learning_rate=align_rate, weight_decay=align_decay)
    found = prompt_state.predict(inputs[None, :1], context[None]).logits[0]
    return in_first_row(found.to(logits), logits)


def alignment(entering: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Σ_l ½·mean|m_l − M_l| + ½·mean|v_l − S_l|: (k, B, T, W) of k views, and (B, T, W) twice."""
    mean, variance = entering.mean(dim=0), entering.var(dim=0, unbiased=False)
    return 0.5 * ((mean - means).abs() + (variance - variances).abs()).mean(dim=(1, 2)).sum()


def source_moments(state: MapleState) -> tuple[Tensor, Tensor]:
    """M and S (2, T + n, W_v) of the source images, from the file of the prompts."""
    prompts = state.prompts
    if prompts.means is None or prompts.variances is None:
        raise OtptError(
            "prompt-align needs the token statistics of source images, which this file of MaPLe's prompts does not "
            "have; make one with 'otpt train maple', or in Python set means and variances of MaplePrompts."
        )
    means, variances = (each[:_BLOCKS].to(state.init) for each in (prompts.means, prompts.variances))
    expected = (_BLOCKS, state.tower.length + prompts.text.shape[1], state.tower.width)
    if tuple(means.shape) != expected or tuple(variances.shape) != expected:
        raise OtptError(
            f"The token statistics of MaPLe's file have the shape {tuple(prompts.means.shape)}; expected {expected} "
            "or more blocks, computed with this backbone and these prompts."
        )
    return means, variances
