from .angle import nearest_angle
from .attributes import attribute_inter, attribute_intra
from .coordinates import coordinate_divergence
from .dispersion import text_dispersion
from .ensemble import clean_weight, ensemble_cross_entropy, strong_views
from .entropy import entropy_of_mean, mean_of_entropies, select_confident, view_entropies, weighted_entropies
from .gram import frobenius_orthogonality, orthogonality, row_orthogonality, squared_orthogonality
from .huber import huber_cosine
from .moments import moment_distance
from .ranges import logit_range, range_penalty, rescaled_entropy
from .registry import OBJECTIVES, Objective
from .reward import clip_reward

__all__ = [
    "OBJECTIVES",
    "Objective",
    "attribute_inter",
    "attribute_intra",
    "clean_weight",
    "clip_reward",
    "coordinate_divergence",
    "ensemble_cross_entropy",
    "entropy_of_mean",
    "frobenius_orthogonality",
    "huber_cosine",
    "logit_range",
    "mean_of_entropies",
    "moment_distance",
    "nearest_angle",
    "orthogonality",
    "range_penalty",
    "rescaled_entropy",
    "row_orthogonality",
    "select_confident",
    "squared_orthogonality",
    "strong_views",
    "text_dispersion",
    "view_entropies",
    "weighted_entropies",
]
