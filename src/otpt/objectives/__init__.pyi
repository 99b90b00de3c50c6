from .dispersion import text_dispersion
from .ensemble import clean_weight, ensemble_cross_entropy, strong_views
from .entropy import entropy_of_mean, mean_of_entropies, select_confident, view_entropies
from .gram import frobenius_orthogonality, orthogonality, row_orthogonality, squared_orthogonality
from .ranges import logit_range, range_penalty, rescaled_entropy
from .registry import OBJECTIVES, Objective
from .reward import clip_reward

__all__ = [
    "OBJECTIVES",
    "Objective",
    "clean_weight",
    "clip_reward",
    "ensemble_cross_entropy",
    "entropy_of_mean",
    "frobenius_orthogonality",
    "logit_range",
    "mean_of_entropies",
    "orthogonality",
    "range_penalty",
    "rescaled_entropy",
    "row_orthogonality",
    "select_confident",
    "squared_orthogonality",
    "strong_views",
    "text_dispersion",
    "view_entropies",
]
