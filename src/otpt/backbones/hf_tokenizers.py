"""Tokenizers of transformers, with the text preparation and the padding of a model's training."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from otpt.errors import OtptError

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CANONICAL_CLASSES = ("Siglip", "Gemma")
"""Tokenizers with these names are used by SigLIP and SigLIP 2, by dual encoders of no other kind."""
_UNLIMITED = 10**6
"""Tokenizers without a maximum length have a larger ``model_max_length``."""


@runtime_checkable
class HFTokenizer(Protocol):
    """Tokenizer of transformers.

    Attributes:
        pad_token_id: id of the padding, or None.
        padding_side: "right" or "left".
        model_max_length: maximum number of tokens, or a huge number.
    """

    pad_token_id: int | None
    padding_side: str
    model_max_length: int

    def __call__(self, texts: Sequence[str], **options: object) -> Mapping[str, Tensor]:
        """Return "input_ids" and more."""

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of ids."""


class PreparedTokenizer:
    """Tokenizer of transformers that pads on the right and, for SigLIP, prepares texts as in training.

    SigLIP and SigLIP 2 were trained with texts in lower case without punctuation, padded on the right to 64 tokens. Not
    all of their tokenizers in transformers do that.

    Args:
        tokenizer: tokenizer of transformers.
        canonical: whether to prepare texts by :func:`canonicalize`.
    """

    def __init__(self, tokenizer: HFTokenizer, *, canonical: bool) -> None:
        self.tokenizer, self.canonical = tokenizer, canonical

    def __call__(self, texts: Sequence[str], context_length: int) -> Tensor:
        """Return padded token ids (N, L)."""
        return self.encode(texts, context_length)["input_ids"].long()

    def encode(self, texts: Sequence[str], context_length: int) -> Mapping[str, Tensor]:
        """Return the inputs of a text tower, "input_ids" (N, L) and what else the tokenizer gives."""
        prepared = [canonicalize(text) for text in texts] if self.canonical else list(texts)
        return self.tokenizer(
            prepared,
            padding="max_length",
            padding_side="right",
            truncation=True,
            max_length=context_length,
            return_tensors="pt",
        )

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens, or None if the tokenizer has none."""
        length = int(self.tokenizer.model_max_length)
        return length if length < _UNLIMITED else None


def canonicalize(text: str) -> str:
    """Return a text in lower case without punctuation, with single spaces.

    >>> canonicalize("A photo of a Red_Panda.")
    'a photo of a red panda'
    """
    return " ".join(text.replace("_", " ").translate(_NO_PUNCTUATION).lower().split())


def prepare_tokenizer(tokenizer: object, model_type: str | None) -> object:
    """Return the :class:`PreparedTokenizer` of a tokenizer of transformers; other tokenizers are returned unchanged.

    Args:
        tokenizer: any tokenizer.
        model_type: ``config.model_type`` of a model of transformers, or None.
    """
    if not isinstance(tokenizer, HFTokenizer):
        return tokenizer
    canonical = model_type in ("siglip", "siglip2") or type(tokenizer).__name__.startswith(_CANONICAL_CLASSES)
    if tokenizer.pad_token_id is None:
        raise OtptError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token; set tokenizer.pad_token to that of the "
            "model's training."
        )
    if tokenizer.padding_side != "right" and not canonical:
        raise OtptError(
            f"The tokenizer {type(tokenizer).__name__} pads on the {tokenizer.padding_side}, but text towers of dual "
            "encoders are trained with padding on the right; set tokenizer.padding_side = 'right' if this one was."
        )
    return PreparedTokenizer(tokenizer, canonical=canonical)
