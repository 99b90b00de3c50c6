from .registry import DEFAULT_SCORE, REJECTED, SCORES, Score, get_score
from .rejector import Rejector

__all__ = [
    "DEFAULT_SCORE",
    "REJECTED",
    "SCORES",
    "Rejector",
    "Score",
    "get_score",
]
