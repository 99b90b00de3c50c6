"""``SiglipModel`` of transformers, with the interface of open_clip's models."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class SiglipVisionTransformer(nn.Module):
    """Pixels (N, 3, S, S) → features (N, D), not normalised."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.vision_model
        self.image_size = int(model.config.vision_config.image_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """The pooled output of the attention head."""
        pooled: Tensor = self.model(pixel_values=pixels).pooler_output
        return pooled


class SiglipText(nn.Module):
    """Token ids (N, L) → features (N, D), not normalised."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.text_model
        self.context_length = int(model.config.text_config.max_position_embeddings)

    @property
    def token_embedding(self) -> nn.Module:
        """What turns token ids into embeddings."""
        found: nn.Module = self.model.embeddings.token_embedding
        return found

    def forward(self, ids: Tensor) -> Tensor:
        """Every position is read, padding too, as the model was trained."""
        pooled: Tensor = self.model(input_ids=ids).pooler_output
        return pooled


class SiglipClip(nn.Module):
    """A ``SiglipModel``, which it takes as its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual, self.text = SiglipVisionTransformer(model), SiglipText(model)
        self.logit_scale, self.logit_bias = model.logit_scale, model.logit_bias

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """Text features (N, D)."""
        features: Tensor = self.text(ids)
        return F.normalize(features, dim=-1) if normalize else features


class TransformersTokenizer:
    """A tokenizer of transformers as open_clip's tokenizers are called: padded to the whole length."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @staticmethod
    def clean_fn(text: str) -> str:
        """The tokenizer cleans by itself."""
        return text

    def __call__(self, texts: list[str], context_length: int) -> Tensor:
        found = self.tokenizer(
            texts, padding="max_length", truncation=True, max_length=context_length, return_tensors="pt"
        )
        ids: Tensor = found.input_ids
        return ids
