"""Scores of unknown images by name. Nothing heavy is imported until a function is called.

A score is a function of what its parameters name: ``cosines`` (…, C) of images with text features, ``logits`` (…, C) =
scale·cosine + bias, ``probabilities`` (…, C), their softmax, ``word_cosines`` and ``word_logits`` (…, M) of words
that are none of the classes, those that are furthest from the classes first. It gives one number per image (…), high
for images that fit none of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from otpt.errors import OtptError, unknown
from otpt.functions import parameters, resolve

REJECTED = "rejected"
"""Flag of an output whose image fits none of the classes."""


@dataclass(frozen=True)
class Score:
    """How unknown an image is.

    Attributes:
        source: "module:name" of the function.
        threshold: above it an image is rejected; None where no number means anything without labels.
        meaning: what the threshold says of an image.
    """

    name: str
    source: str
    threshold: float | None
    meaning: str

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself, imported when first asked for."""
        return resolve(self.source)

    @property
    def needs_words(self) -> bool:
        """Whether it compares the classes with other words."""
        return bool({"word_cosines", "word_logits"} & set(parameters(self.function)))


SCORES = {
    score.name: score
    for score in (
        Score(
            "word-margin",
            "otpt.rejection.word_margin:word_margin",
            0.0,
            "ten words that are none of the classes fit better, on average, than the best class",
        ),
        Score("msp", "otpt.rejection.msp:msp", 0.5, "no class has half of the probability"),
        Score("mcm", "otpt.rejection.mcm:mcm", None, ""),
        Score(
            "entropy", "otpt.rejection.entropy:entropy", 0.5, "the entropy is more than half of the largest possible"
        ),
        Score("energy", "otpt.rejection.energy:energy", None, ""),
        Score("max-cosine", "otpt.rejection.max_cosine:max_cosine", None, ""),
        Score(
            "neg-label",
            "otpt.rejection.neg_label:neg_label",
            0.5,
            "words that are none of the classes are more probable than the classes",
        ),
    )
}
"""All scores."""

DEFAULT_SCORE = "word-margin"
"""Of ``--reject``: the best on average in ``python -m benchmarks.rejection``."""


def get_score(name: str) -> Score:
    """A score by name."""
    if not isinstance(name, str):
        raise OtptError(
            f"The score of unknown images is {name!r}; expected a name, such as {DEFAULT_SCORE!r}; a threshold has an "
            "option of its own."
        )
    if name not in SCORES:
        raise unknown("score of unknown images", name, SCORES)
    return SCORES[name]


def chosen_threshold(score: str, given: float | None) -> float:
    """The threshold of a score, or the one given; ``OtptError`` if there is none."""
    own = get_score(score).threshold
    threshold = own if given is None else given
    if threshold is None:
        raise OtptError(
            f"The score {score!r} has no threshold that means something without labels; give one "
            f"(--reject-threshold), or take {DEFAULT_SCORE!r}."
        )
    if not math.isfinite(threshold):
        raise OtptError(f"The threshold of {score!r} is {threshold}; expected a finite number.")
    return threshold
