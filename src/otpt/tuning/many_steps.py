"""The general engine: any number of steps with torch's AdamW, and C-TPT's two-step mode.

Selected views are those of the start context and stay the same over all steps. The range of the most confident view
is taken anew in each step by the penalty; by the rescaled entropy it is kept from the first step on, where alone it
carries gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.objectives import logit_range, select_confident
from otpt.objectives.logit_range import Range
from otpt.prompts import Linearisation
from otpt.tuning.passes import Tuned, in_passes, mean_cosine
from otpt.tuning.plan import TEXT_OBJECTIVES, VIEW_OBJECTIVES, TuningPlan
from otpt.tuning.text_side import TextSide


def tune_many_steps(text: TextSide, views: Tensor, plan: TuningPlan, *, starts: Tensor | None = None) -> Tuned:
    """Tune each picture's context by ``plan``: views (B, V, D), the clean one first.

    ``starts`` (B, n, W) are start contexts of the pictures' own; all start from ``text.start`` without.
    """
    context_size = text.start.numel()

    def one_pass(pictures: Tensor, *own: Tensor) -> Tensor:
        line = text.encoder.linearise(own[0]) if own else text.linearisation
        contexts, bad = _tune_pass(text, pictures, plan, line, own[0] if own else text.start)
        features = text.encoder.encode(contexts)
        logits = torch.stack([text.logits(p[:1], e)[0] for p, e in zip(pictures, features, strict=True)])
        extras = [bad[:, None].to(logits.dtype), mean_cosine(features)[:, None], contexts.flatten(1)]
        return torch.cat([logits, *extras], dim=1)

    inputs = [views] if starts is None else [views, starts]
    answer = in_passes(one_pass, *inputs, size=text.contexts_per_pass)
    logits, bad, cosine, contexts = answer.split([answer.shape[1] - context_size - 2, 1, 1, context_size], dim=1)
    return Tuned(logits, contexts.view(-1, *text.start.shape), bad[:, 0].bool(), cosine[:, 0])


def _tune_pass(
    text: TextSide, pictures: Tensor, plan: TuningPlan, at: Linearisation, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Tuned contexts (b, n, W) of one pass of pictures, and whose gradient was not finite at some step.

    ``at`` is the linearisation at ``start``, (n, W) or (b, n, W).
    """
    start = start.expand(len(pictures), -1, -1)
    at_start = torch.stack([text.logits(p, e) for p, e in zip(pictures, at.text_features, strict=True)])
    chosen = select_confident(at_start, plan.selected_count(pictures.shape[1]))
    selected = pictures.gather(1, chosen[..., None].expand(-1, -1, pictures.shape[-1]))
    clean = logit_range(at_start[:, 0]) if plan.reference == "clean" else None

    contexts = start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([contexts], lr=plan.learning_rate, weight_decay=plan.weight_decay)
    bad = torch.zeros(len(pictures), dtype=torch.bool, device=start.device)
    first: Range | None = None
    parts = [plan.view_weights, plan.text_weights] if plan.two_step else [plan.weights]
    line: Linearisation | None = at
    for part in plan.steps * [part for part in parts if part]:
        line = line or text.encoder.linearise(contexts.detach())
        gradient, now = _gradient(text, line, selected, part, penalty=clean, rescaling=clean or first)
        first = first or now
        finite = gradient.flatten(1).isfinite().all(dim=1)
        bad |= ~finite
        contexts.grad = torch.where(finite[:, None, None], gradient, torch.zeros_like(gradient))
        optimiser.step()
        line = None
    return torch.where(bad[:, None, None], start, contexts.detach()), bad


def _gradient(
    text: TextSide,
    line: Linearisation,
    selected: Tensor,
    weights: tuple[tuple[str, float], ...],
    *,
    penalty: Range | None,
    rescaling: Range | None,
) -> tuple[Tensor, Range]:
    """∇_θ Σ weight·objective at the contexts of ``line``, and the range of the most confident view there, detached.

    ``penalty`` and ``rescaling`` are the reference ranges of these two objectives; None means that range.
    """
    with torch.enable_grad():
        features = line.text_features.detach().requires_grad_()
        logits = text.logits(selected, features)
        now = logit_range(logits[:, 0])
        loss = features.new_zeros(())
        for objective, weight in weights:
            if objective in VIEW_OBJECTIVES:
                reference = penalty if objective == "range-penalty" else rescaling
                loss = loss + weight * VIEW_OBJECTIVES[objective](logits, reference or now).sum()
            else:
                loss = loss + weight * TEXT_OBJECTIVES[objective](features).sum()
    (cotangent,) = torch.autograd.grad(loss, features)
    return line.vjp(cotangent), (now[0].detach(), now[1].detach())
