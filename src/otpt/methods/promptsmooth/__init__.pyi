from .certificate import Certificate, certify, lower_confidence_bound, predict_or_abstain
from .noise import noisy_copies
from .smoother import Smoother
from .smoothing import Smoothing

__all__ = [
    "Certificate",
    "Smoother",
    "Smoothing",
    "certify",
    "lower_confidence_bound",
    "noisy_copies",
    "predict_or_abstain",
]
