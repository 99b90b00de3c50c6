"""One door to all engines: all configs on a batch of images, nothing computed twice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.frozen_classes import tune_with_frozen
from otpt.methods.prompt_tuning.gradients import GradientStore
from otpt.methods.prompt_tuning.many_steps import tune_many_steps
from otpt.methods.prompt_tuning.one_step import tune_one_step
from otpt.methods.prompt_tuning.passes import Tuned
from otpt.methods.prompt_tuning.text_side import TextSide


def tune(
    text: TextSide,
    views: Tensor,
    configs: Sequence[TuningConfig],
    *,
    starts: Tensor | None = None,
    known: Sequence[GradientStore] | None = None,
    keep_texts: bool = False,
) -> dict[TuningConfig, Tuned]:
    """Tune the context for each image by each distinct config.

    Args:
        text: the prepared text features.
        views: (B, V, D) unit image features of B images, the clean view first.
        configs: what to minimise and how; repeated configs are run once.
        starts: (B, n, W) an initial context of its own for each image (CoCoOp); all start from ``text.init`` without.
        known: gradients at ``text.init``, one store per image, for the one-step engine.
        keep_texts: hand the tuned text features on.
    """
    distinct = list(dict.fromkeys(configs))
    if starts is not None:
        return {
            config: tune_many_steps(text, views, config, starts=starts, keep_texts=keep_texts) for config in distinct
        }
    results: dict[TuningConfig, Tuned] = {}
    for engine, frozen in ((tune_one_step, False), (tune_with_frozen, True)):
        own = [config for config in distinct if config.closed_form and bool(config.frozen_below) == frozen]
        if own:
            results.update(zip(own, engine(text, views, own, known=known, keep_texts=keep_texts), strict=True))
    for config in distinct:
        if config not in results:
            results[config] = tune_many_steps(text, views, config, keep_texts=keep_texts)
    return results
