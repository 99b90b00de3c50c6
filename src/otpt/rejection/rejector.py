"""Text features of the classes, and negative ones, prepared once; then a number for each image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.functions import call_with
from otpt.prompts import MEMORY_BUDGET, Prompt, prompt_encoder, tokenize_prompts
from otpt.rejection.registry import DEFAULT_SCORE, chosen_threshold, get_score
from otpt.rejection.words import furthest_first, negative_words


class Rejector:
    """Scores image features by how unknown the image is, whichever method predicts it.

    Args:
        class_names: (C,).
        prompt: the words around them; "a photo of a" by default.
        score: one of :data:`otpt.rejection.SCORES`.
        threshold: above it an image is rejected; the score's own by default.

    Attributes:
        words: that are none of the classes and are compared with them; none for scores that need none.
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
        self.score = get_score(score)
        self.threshold = chosen_threshold(score, threshold)
        self._scale, self._bias = backbone.logit_scale, backbone.logit_bias
        given = prompt or Prompt()
        self._classes = _text_features(backbone, class_names, given, memory_budget)
        self._words: Tensor | None = None
        self.words: tuple[str, ...] = ()
        if self.score.needs_words:
            classes = {name.replace("_", " ").lower() for name in class_names}  # "Dog" and "dog" are one text to CLIP
            listed = [word for word in negative_words() if word not in classes]
            texts = _text_features(backbone, listed, given, memory_budget)
            order = furthest_first(texts, self._classes)
            self._words, self.words = texts[order], tuple(listed[i] for i in order.tolist())

    def __call__(self, features: Tensor) -> Tensor:
        """Scores (B,) of unit features (B, D) of clean views."""
        return torch.stack([self._of_one(each[None])[0] for each in features])  # one size: the same bits in any batch

    def is_unknown(self, value: float) -> bool:
        """Whether an image with this score is rejected."""
        return value > self.threshold

    def _of_one(self, feature: Tensor) -> Tensor:
        cosines = feature @ self._classes.mT
        logits = self._scale * cosines + self._bias
        available = {"cosines": cosines, "logits": logits, "probabilities": logits.softmax(dim=-1)}
        if self._words is not None:
            available["word_cosines"] = feature @ self._words.mT
            available["word_logits"] = self._scale * available["word_cosines"] + self._bias
        found: Tensor = call_with(self.score.function, available)
        return found


def _text_features(backbone: Backbone, names: Sequence[str], prompt: Prompt, memory_budget: int) -> Tensor:
    """Unit text features (C, D)."""
    tokens = tokenize_prompts(backbone.text, names, prompt)
    encoder = prompt_encoder(backbone.text, tokens, memory_budget=memory_budget)
    start = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    with torch.no_grad():
        return encoder.encode(start[None])[0]
