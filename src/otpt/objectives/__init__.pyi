from .dispersion import text_dispersion
from .ensemble import clean_weight, ensemble_cross_entropy, strong_views
from .entropy import entropy_of_mean, select_confident, view_entropies
from .gram import frobenius_orthogonality, orthogonality, row_orthogonality, squared_orthogonality
from .ranges import logit_range, range_penalty, rescaled_entropy
from .registry import OBJECTIVES, Objective

__all__ = [
    "OBJECTIVES",
    "Objective",
    "clean_weight",
    "ensemble_cross_entropy",
    "entropy_of_mean",
    "frobenius_orthogonality",
    "logit_range",
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
