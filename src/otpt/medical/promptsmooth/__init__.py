"""PromptSmooth: a prompt tuned for each picture on Gaussian copies of it, then randomised smoothing with a certificate.

*Source:* Hussein et al., MICCAI 2024; the certificate is Cohen et al.'s, ICML 2019.
"""

from __future__ import annotations

from otpt.medical.promptsmooth.certificate import Certificate, certify, lower_confidence_bound, predict_or_abstain
from otpt.medical.promptsmooth.noise import noisy_copies
from otpt.medical.promptsmooth.smoother import Smoother, Smoothing

__all__ = [
    "Certificate",
    "Smoother",
    "Smoothing",
    "certify",
    "lower_confidence_bound",
    "noisy_copies",
    "predict_or_abstain",
]
