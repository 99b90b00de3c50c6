from .context import fpp_prompt
from .pretraining import alignment, flatness, pretrain

__all__ = ["alignment", "flatness", "fpp_prompt", "pretrain"]
