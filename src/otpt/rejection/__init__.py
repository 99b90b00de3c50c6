"""Rejection of images that show none of the classes, without labels: ``Rejector(backbone, names, score="msp")``.

A score returns one number per image (…), higher for unknown images. Its parameter names are its inputs: ``cosines``
(…, C) of images and class texts, ``logits`` (…, C) = scale·cosine + bias, their softmax ``probabilities`` (…, C), and
``word_cosines`` (…, M) of negative words, which are not classes, furthest from the classes first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

from otpt.backbones import Backbone, text_encoder
from otpt.errors import OtptError, unknown
from otpt.prompts import MEMORY_BUDGET, Prompt, prompt_encoder
from otpt.prompts.tokens import fixed_tokens

REJECTED = "rejected"
"""Flag of a rejected image."""

BEST_WORDS = 10
"""Number of cosines averaged in ``word_margin``, since a single word may be a synonym of a class."""

_NEAR = 0.95
"""Quantile of a word's cosines with the classes that measures their similarity; robust to outliers."""


def word_margin(cosines: Tensor, word_cosines: Tensor) -> Tensor:
    """Mean of the ten largest word cosines minus max_c cos_c: (…, C), (…, M) → (…)."""
    return word_cosines.topk(BEST_WORDS, dim=-1).values.mean(dim=-1) - cosines.amax(dim=-1)


def msp(probabilities: Tensor) -> Tensor:
    """Maximum softmax probability (Hendrycks and Gimpel, 2017), 1 − max_c p_c: (…, C) → (…)."""
    return 1 - probabilities.amax(dim=-1)


def energy(logits: Tensor) -> Tensor:
    """Free energy (Liu et al., 2020), −log Σ_c exp ℓ_c: (…, C) → (…)."""
    return -logits.logsumexp(dim=-1)


class Score(NamedTuple):
    """Score function with the default threshold above which images are rejected, or None."""

    function: Callable[..., Tensor]
    threshold: float | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the score's inputs."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def needs_words(self) -> bool:
        """Whether the score uses negative words."""
        return "word_cosines" in self.inputs


SCORES = {
    "word-margin": Score(word_margin, 0.0),  # ten other words fit better on average than the best class
    "msp": Score(msp, 0.5),  # no class has half of the probability
    "energy": Score(energy),
}
"""All scores by name."""

DEFAULT_SCORE = "word-margin"
"""Default of ``--reject``; on par with or better than other scores on the emoji sets (docs/calibrate.md)."""
NO_PROMISE = (
    "the default threshold of --reject promises no share: that of 'word-margin' rejected 12 % of the known images on "
    "drawings and 71 % on photographs with a weak model. Score images that show your classes, and give a quantile of "
    "their unknown_score as --reject-threshold."
)
"""Warning based on ``python -m benchmarks.rejection``."""


def get_threshold(score: str, given: float | None) -> float:
    """Return the given threshold or the default of the score; raise if there is none."""
    if score not in SCORES:
        raise unknown("score of unknown images", score, SCORES)
    threshold = SCORES[score].threshold if given is None else given
    if threshold is None or not math.isfinite(threshold):
        raise OtptError(
            f"The threshold of the score {score!r} is {threshold}; set a finite number (--reject-threshold), or use "
            f"{DEFAULT_SCORE!r}, which has a default."
        )
    return threshold


class Rejection(NamedTuple):
    """Request to reject images that fit none of the classes.

    Attributes:
        score: name in :data:`SCORES`.
        threshold: reject images with a higher score; None for the default of the score.
    """

    score: str
    threshold: float | None = None


class Rejector:
    """Rejection of unknown images by a score of their features, independent of the method.

    ``score`` is one of :data:`SCORES` and ``threshold`` replaces its default. ``words`` are the negative words, if the
    score uses them.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        prompt: Prompt | None = None,
        *,
        score: str = DEFAULT_SCORE,
        threshold: float | None = None,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self.threshold = get_threshold(score, threshold)
        self.score = SCORES[score]
        self._scale, self._bias = backbone.logit_scale, backbone.logit_bias
        prompt = prompt or Prompt()
        self._classes = text_features_of(backbone, class_names, prompt, memory_budget)
        self._words: Tensor | None = None
        self.words: tuple[str, ...] = ()
        if self.score.needs_words:
            classes = {name.replace("_", " ").lower() for name in class_names}  # "Dog" and "dog" are one text to CLIP
            listed = [word for word in negative_words() if word not in classes]
            texts = text_features_of(backbone, listed, prompt, memory_budget)
            order = furthest_first(texts, self._classes)
            self._words, self.words = texts[order], tuple(listed[i] for i in order.tolist())

    def __call__(self, features: Tensor) -> Tensor:
        """Score unit features (B, D) of clean views: (B,)."""
        return torch.stack([self._score(feature[None])[0] for feature in features])  # independent of the batch

    def is_unknown(self, value: float) -> bool:
        """Return whether an image with this score is rejected."""
        return value > self.threshold

    def _score(self, feature: Tensor) -> Tensor:
        cosines = feature @ self._classes.mT
        logits = self._scale * cosines + self._bias
        available = {"cosines": cosines, "logits": logits, "probabilities": logits.softmax(dim=-1)}
        if self._words is not None:
            available["word_cosines"] = feature @ self._words.mT
        return self.score.function(**{name: available[name] for name in self.score.inputs})


def negative_words() -> list[str]:
    """Return common English nouns for visible things, in alphabetical order."""
    return resources.files("otpt.rejection").joinpath("words.txt").read_text(encoding="utf-8").splitlines()


def furthest_first(words: Tensor, classes: Tensor) -> Tensor:
    """Sort words by the distance of their text features (W, D) from the classes (C, D); return indices (W,)."""
    return (words @ classes.mT).double().quantile(_NEAR, dim=-1).argsort(stable=True)


def text_features_of(backbone: Backbone, names: Sequence[str], prompt: Prompt, memory_budget: int) -> Tensor:
    """Compute unit text features (C, D)."""
    text = text_encoder(backbone)
    tokens = fixed_tokens(text, names, prompt)
    encoder = prompt_encoder(text, tokens, memory_budget=memory_budget)
    start = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    with torch.no_grad():
        return encoder.encode(start[None])[0]
