"""One door to both engines: all plans on a batch of pictures, nothing computed twice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from otpt.tuning.many_steps import tune_many_steps
from otpt.tuning.one_step import tune_one_step
from otpt.tuning.passes import Tuned
from otpt.tuning.plan import TuningPlan
from otpt.tuning.text_side import TextSide


def tune(text: TextSide, views: Tensor, plans: Sequence[TuningPlan]) -> dict[TuningPlan, Tuned]:
    """Tune the context for each picture by each distinct plan.

    Args:
        text: the prepared class texts.
        views: (B, V, D) unit image features of B pictures, the clean view first.
        plans: what to lower and how; repeated plans are run once.
    """
    distinct = list(dict.fromkeys(plans))
    one_step = [plan for plan in distinct if plan.closed_form]
    results = dict(zip(one_step, tune_one_step(text, views, one_step), strict=True)) if one_step else {}
    for plan in distinct:
        if plan not in results:
            results[plan] = tune_many_steps(text, views, plan)
    return results
