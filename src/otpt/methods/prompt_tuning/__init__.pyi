from .attribute_side import AttributeTextSide
from .config import REFERENCES, TuningConfig
from .engine import tune
from .many_steps import tune_many_steps
from .one_step import adamw_first_step, tune_one_step
from .passes import Tuned, mean_cosine
from .text_side import TextSide

__all__ = [
    "REFERENCES",
    "AttributeTextSide",
    "TextSide",
    "Tuned",
    "TuningConfig",
    "adamw_first_step",
    "mean_cosine",
    "tune",
    "tune_many_steps",
    "tune_one_step",
]
