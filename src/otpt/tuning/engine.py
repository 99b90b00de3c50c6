"""One door to both engines: all plans on a batch of pictures, nothing computed twice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.tuning.gradients import GradientStore
from otpt.tuning.many_steps import tune_many_steps
from otpt.tuning.one_step import tune_one_step
from otpt.tuning.passes import Judgement, Tuned, in_passes, mean_cosine
from otpt.tuning.plan import TuningPlan
from otpt.tuning.text_side import TextSide


def tune(
    text: TextSide,
    views: Tensor,
    plans: Sequence[TuningPlan],
    *,
    starts: Tensor | None = None,
    known: Sequence[GradientStore] | None = None,
) -> dict[TuningPlan, Tuned]:
    """Tune the context for each picture by each distinct plan.

    Args:
        text: the prepared class texts.
        views: (B, V, D) unit image features of B pictures, the clean view first.
        plans: what to lower and how; repeated plans are run once.
        starts: (B, n, W) a start context of its own for each picture (CoCoOp); all start from ``text.start`` without.
        known: gradients at ``text.start``, one store a picture, for the one-step engine.
    """
    distinct = list(dict.fromkeys(plans))
    if starts is not None:
        return {plan: tune_many_steps(text, views, plan, starts=starts) for plan in distinct}
    one_step = [plan for plan in distinct if plan.closed_form]
    results: dict[TuningPlan, Tuned] = {}
    if one_step:
        results.update(zip(one_step, tune_one_step(text, views, one_step, known=known), strict=True))
    for plan in distinct:
        if plan not in results:
            results[plan] = tune_many_steps(text, views, plan)
    return results


def judge(
    text: TextSide,
    views: Tensor,
    plans: Sequence[TuningPlan],
    *,
    starts: Tensor | None = None,
    known: Sequence[GradientStore] | None = None,
) -> Judgement:
    """Pictures (B, V, D) under the start context and as each plan tunes it; the rest as for :func:`tune`."""
    tuned = tune(text, views, plans, starts=starts, known=known)
    if starts is None:
        return Judgement(text.zero_shot(views), mean_cosine(text.text_features).expand(len(views)), tuned)

    def at_start(clean: Tensor, contexts: Tensor) -> Tensor:
        features = text.encoder.encode(contexts)
        logits = torch.stack([text.logits(c, e)[0] for c, e in zip(clean, features, strict=True)])
        return torch.cat([logits, mean_cosine(features)[:, None]], dim=1)

    found = in_passes(at_start, views[:, :1], starts, size=text.contexts_per_pass)
    return Judgement(found[:, :-1], found[:, -1], tuned)
