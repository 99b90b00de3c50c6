"""The text side where each class has several texts, "a photo of a {attribute} {name}." (TCA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.methods.inits.attributes import names_with_attributes
from otpt.methods.prompt_tuning.text_side import TextSide
from otpt.prompts import MEMORY_BUDGET, Prompt


def class_logits(logits: Tensor, attributes: int) -> Tensor:
    """ℓ_c = log Σ_a exp ℓ_ca, of the ``attributes`` texts that each class has in a row: (…, C·A) → (…, C)."""
    return _by_class(logits, attributes).logsumexp(dim=-1)


def _by_class(logits: Tensor, attributes: int) -> Tensor:
    """(…, C·A) → (…, C, A)."""
    return logits.unflatten(-1, (-1, attributes))


class AttributeTextSide(TextSide):
    """C·A texts, those of a class in a row; a class has the sum of the probabilities of its A texts.

    P_c = Σ_a exp ℓ_ca / Σ_{c'a} exp ℓ_c'a is the softmax of the class logits ℓ_c = log Σ_a exp ℓ_ca.

    Attributes:
        text_features: (C·A, D), E₀.
        attributes: A.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        attributes: Mapping[str, Sequence[str]],
        prompt: Prompt | None = None,
        *,
        allow_duplicates: bool = False,
        memory_budget: int = MEMORY_BUDGET,
        contexts_per_pass: int | None = None,
    ) -> None:
        names = names_with_attributes(class_names, attributes)
        super().__init__(
            backbone,
            class_names,
            prompt,
            allow_duplicates=allow_duplicates,
            memory_budget=memory_budget,
            contexts_per_pass=contexts_per_pass,
            names_in_texts=names,
        )
        self.attributes = len(names) // len(self.class_names)
        self._facts["attributes"] = self.attributes  # the same texts may be grouped otherwise

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """ℓ_c = log Σ_a exp(scale · v·e_ca + bias): (…, V, D) and (…, C·A, D) → (…, V, C)."""
        return class_logits(super().logits(image_features, text_features), self.attributes)

    def pull_back(self, gradient: Tensor, image_features: Tensor) -> Tensor:
        """∂L/∂E at E₀, (C·A, D), of ∂L/∂ℓ (k, C): a class hands its gradient on in proportion to exp ℓ_ca."""
        probabilities = _by_class(super().logits(image_features, self.text_features), self.attributes).softmax(dim=-1)
        return super().pull_back((gradient[..., None] * probabilities).flatten(-2), image_features)

    def texts_of(self, classes: Tensor) -> Tensor:
        """The A texts of each class."""
        return (classes[:, None] * self.attributes + torch.arange(self.attributes, device=classes.device)).flatten()

    def class_features(self, text_features: Tensor) -> Tensor:
        """The mean text feature of each class, normalised: (…, C·A, D) → (…, C, D)."""
        return F.normalize(text_features.unflatten(-2, (-1, self.attributes)).mean(dim=-2), dim=-1)
