"""The general engine: any number of steps with torch's AdamW, and C-TPT's two-step mode.

Selected views are those of the initial context and stay the same over all steps. The range of the most confident view
is computed in each step, and that of the first step, where alone it carries gradient, is available to later ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from otpt.entropy import SELECTED_BY
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.passes import Tuned, in_passes, logits_and_extras, split_extras
from otpt.methods.prompt_tuning.text_side import TextSide
from otpt.objectives import Range, logit_range
from otpt.prompts import Linearisation
from otpt.registry import OBJECTIVES, VIEWS


def tune_many_steps(
    text: TextSide,
    views: Tensor,
    config: TuningConfig,
    *,
    starts: Tensor | None = None,
    keep_texts: bool = False,
) -> Tuned:
    """Tune each image's context by ``config``: views (B, V, D), the clean one first.

    ``starts`` (B, n, W) are initial contexts of the images' own; all start from ``text.init`` without. ``keep_texts``
    hands the tuned text features on.
    """
    context_size = text.init.numel()

    def one_pass(images: Tensor, *own: Tensor) -> Tensor:
        line = text.encoder.linearise(own[0]) if own else text.linearisation
        contexts, bad = _tune_pass(text, images, config, line, own[0] if own else text.init)
        features = text.encoder.encode(contexts)
        answer = logits_and_extras(text, [image[:1] for image in images], features, keep_texts=keep_texts)
        return torch.cat([bad[:, None].to(answer.dtype), contexts.flatten(1), answer], dim=1)

    inputs = [views] if starts is None else [views, starts]
    found = in_passes(one_pass, *inputs, size=text.contexts_per_pass)
    bad, contexts, answer = found.split([1, context_size, found.shape[1] - context_size - 1], dim=1)
    logits, cosine, texts = split_extras(text, answer)
    return Tuned(logits, contexts.view(-1, *text.init.shape), bad[:, 0].bool(), cosine, texts)


def _tune_pass(
    text: TextSide, images: Tensor, config: TuningConfig, at: Linearisation, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Tuned contexts (b, n, W) of one pass of images, and whose gradient was not finite at some step.

    ``at`` is the linearisation at ``start``, (n, W) or (b, n, W).
    """
    initial = text.text_features if start.ndim == 2 else at.text_features
    start = start.expand(len(images), -1, -1)
    at_start = torch.stack([text.logits(p, e) for p, e in zip(images, at.text_features, strict=True)])
    chosen = SELECTED_BY[config.selection](at_start, config.selected_count(images.shape[1]))
    selected = images.gather(1, chosen[..., None].expand(-1, -1, images.shape[-1]))
    clean = logit_range(at_start[:, 0]) if config.reference == "clean" else None
    own = at_start.gather(1, chosen[..., None].expand(-1, -1, at_start.shape[-1]))
    at_init = {"zero_shot": own, "cosines": text.cosines(own), "all_views": at_start}

    contexts = start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([contexts], lr=config.learning_rate, weight_decay=config.weight_decay)
    bad = torch.zeros(len(images), dtype=torch.bool, device=start.device)
    first: Range | None = None
    parts = [config.view_weights, config.text_weights] if config.two_step else [config.weights]
    line: Linearisation | None = at
    for part in config.steps * [part for part in parts if part]:
        line = line or text.encoder.linearise(contexts.detach())
        gradient, now = _gradient(
            text, line, selected, part, dict(config.settings), at_init, initial, reference=clean, first=first
        )
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
    settings: Mapping[str, float],
    at_init: Mapping[str, Tensor],
    initial: Tensor,
    *,
    reference: Range | None,
    first: Range | None,
) -> tuple[Tensor, Range]:
    """∇_θ Σ weight·objective at the contexts of ``line``, and the range of the most confident view there, detached.

    ``initial`` are the text features at the init, ``reference`` a constant reference range, ``first`` the range of the
    first step.
    """
    with torch.enable_grad():
        features = line.text_features.detach().requires_grad_()
        logits = text.logits(selected, features)
        now = logit_range(logits[:, 0])
        loss = features.new_zeros(())
        for objective, weight in weights:
            if OBJECTIVES[objective].on == VIEWS:
                ranges = {"current_range": reference or now, "initial_range": reference or first or now}
                value = OBJECTIVES[objective]({**at_init, **ranges, "logits": logits}, settings)
            else:
                value = text.objective(objective, features, settings, initial)
            loss = loss + weight * value.sum()
    (cotangent,) = torch.autograd.grad(loss, features)
    return line.vjp(cotangent), (now[0].detach(), now[1].detach())
