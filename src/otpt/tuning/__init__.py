"""From image features and objectives to tuned contexts and logits."""

from __future__ import annotations

from otpt.tuning.engine import judge, tune
from otpt.tuning.many_steps import tune_many_steps
from otpt.tuning.one_step import adamw_first_step, tune_one_step
from otpt.tuning.passes import Judgement, Tuned, mean_cosine
from otpt.tuning.plan import OBJECTIVES, REFERENCES, TEXT_OBJECTIVES, VIEW_OBJECTIVES, TuningPlan
from otpt.tuning.text_side import TextSide
from otpt.tuning.two_tower import TwoTowerSide

__all__ = [
    "OBJECTIVES",
    "REFERENCES",
    "TEXT_OBJECTIVES",
    "VIEW_OBJECTIVES",
    "Judgement",
    "TextSide",
    "Tuned",
    "TuningPlan",
    "TwoTowerSide",
    "adamw_first_step",
    "judge",
    "mean_cosine",
    "tune",
    "tune_many_steps",
    "tune_one_step",
]
