"""Steps on the context: from image features and objectives to tuned contexts and logits."""

from otpt.methods.method import TuningConfig
from otpt.methods.prompt_tuning.state import AttributeState, PromptState, Scores, mean_cosine, prompt_state
from otpt.methods.prompt_tuning.tuner import adamw_first_step, failed_on, tune, tune_many_steps

__all__ = [
    "AttributeState",
    "PromptState",
    "Scores",
    "TuningConfig",
    "adamw_first_step",
    "failed_on",
    "mean_cosine",
    "prompt_state",
    "tune",
    "tune_many_steps",
]
