from .registry import DEFAULT_SCORE, SCORES, Score, get_score
from .rejector import REJECTED, Rejector

__all__ = [
    "DEFAULT_SCORE",
    "REJECTED",
    "SCORES",
    "Rejector",
    "Score",
    "get_score",
]
