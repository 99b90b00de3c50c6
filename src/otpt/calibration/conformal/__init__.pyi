from .aps import aps_scores
from .lac import lac_scores
from .quantile import conformal_quantile, labels_for
from .raps import raps_scores
from .scores import SETS, all_scores, draws

__all__ = [
    "SETS",
    "all_scores",
    "aps_scores",
    "conformal_quantile",
    "draws",
    "labels_for",
    "lac_scores",
    "raps_scores",
]
