"""Text features that leave no context to tune: of descriptions of each class, or given as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import TextTower
from otpt.errors import OtptError
from otpt.prompts.encoders.choosing import encode_sentences
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.templates import Templates


@dataclass(frozen=True)
class Descriptions:
    """Whole sentences about each class, one or more each, taken as they are; the text features of a class are averaged.

    Args:
        texts: (C, any number), in the order of the classes.
    """

    texts: Sequence[Sequence[str]]
    name: str = "descriptions"

    def __post_init__(self) -> None:
        found = tuple((own,) if isinstance(own, str) else tuple(own) for own in self.texts)
        for position, own in enumerate(found, start=1):
            wrong = next((text for text in own if not isinstance(text, str) or not text.strip()), None)
            if not own or wrong is not None:
                given = "no description" if not own else f"the description {wrong!r}"
                raise OtptError(
                    f"Class {position} of {len(found)} has {given}; expected one sentence or more for each."
                )
        object.__setattr__(self, "texts", found)


@dataclass(frozen=True)
class TextFeatures:
    """Text features (C, D) that were computed elsewhere; they are scaled to norm one."""

    features: Tensor = field(compare=False)
    name: str = "text features"

    def __post_init__(self) -> None:
        given = torch.as_tensor(self.features).detach()
        if given.ndim != 2 or not given.is_floating_point() or not bool(given.isfinite().all()):
            raise OtptError(
                f"Text features have shape {tuple(given.shape)} and type {given.dtype}; expected finite floats, "
                "(classes, dimensions)."
            )
        if bool((given == 0).all(dim=1).any()):
            raise OtptError("The text features of a class are all zero; expected a direction for each class.")
        object.__setattr__(self, "features", F.normalize(given, dim=-1))


FixedTexts: TypeAlias = "Templates | Descriptions | TextFeatures"
"""What stands in the place of words and leaves nothing to tune."""


class DescriptionEncoder(PromptEncoder):
    """e_c = unit( (1/K_c) Σ_k unit(E(text k of class c)) ). Contexts are (B, 0, W), and nothing has a gradient."""

    def __init__(self, tower: TextTower, descriptions: Descriptions, *, memory_budget: int = MEMORY_BUDGET) -> None:
        super().__init__([torch.arange(len(descriptions.texts))], graph_bytes=0, memory_budget=memory_budget)
        self._tower, self._texts = tower, descriptions.texts

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        sentences = [text for own in self._texts for text in own]
        features = encode_sentences(self._tower, sentences, memory_budget=self._memory_budget)
        means = [own.mean(dim=0) for own in features.split([len(own) for own in self._texts])]
        return torch.stack(means).expand(len(contexts), -1, -1)


class FixedEncoder(PromptEncoder):
    """Given text features (C, D), whatever the context."""

    def __init__(self, features: Tensor) -> None:
        super().__init__([torch.arange(len(features))], graph_bytes=0, memory_budget=0)
        self._given = features

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        return self._given.expand(len(contexts), -1, -1)
