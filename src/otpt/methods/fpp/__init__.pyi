from .context import fpp_prompt
from .pretraining import alignment, flatness, pretrain
from .settings import Fpp

__all__ = ["Fpp", "alignment", "flatness", "fpp_prompt", "pretrain"]
