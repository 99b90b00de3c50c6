"""Objectives of test-time prompt tuning: pure functions of logits or of text features, one idea a file.

*View objectives* see the logits of one picture's selected views, ``(…, k, C)``; *text objectives* see the class
text features alone, ``(…, C, D)``, and therefore have the same gradient for every picture at the shared start.
"""

from __future__ import annotations

from otpt.objectives.dispersion import text_dispersion
from otpt.objectives.entropy import entropy_of_mean, select_confident, view_entropies
from otpt.objectives.logit_range import logit_range, range_penalty, rescaled_entropy
from otpt.objectives.orthogonality import (
    frobenius_orthogonality,
    orthogonality,
    row_orthogonality,
    squared_orthogonality,
)

__all__ = [
    "entropy_of_mean",
    "frobenius_orthogonality",
    "logit_range",
    "orthogonality",
    "range_penalty",
    "rescaled_entropy",
    "row_orthogonality",
    "select_confident",
    "squared_orthogonality",
    "text_dispersion",
    "view_entropies",
]
