"""The text tower of a backbone: texts → token ids → embeddings → text features."""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.causal import CausalTower, read_causal_tower
from otpt.errors import OtptError

_CHECK_PROMPTS = ("a photo of a cat.", "a photo of a 2012 Tesla Model S (sedan), from the side.")
"""Prompts on which the canonical form is compared: short, long, with digits and punctuation."""

_local = threading.local()


class TextTower(ABC):
    """The interface of a text tower; subclass it for a tower of another kind.

    Attributes:
        width: W, of token embeddings.
        context_length: L, tokens of a padded text.
        device: of the embeddings.
        causal: canonical weights of a CLIP text tower, for the fast encoder; None for other towers.
        autocast: dtype in which prompts are encoded; None for the dtype of the weights.
    """

    width: int
    context_length: int
    device: torch.device = torch.device("cpu")
    causal: CausalTower | None = None
    autocast: torch.dtype | None = None

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids (N, L) int64, padded, on the tower's device; ``OtptError`` for a text that does not fit."""

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings (…, W) of ids (…), without positions."""

    @abstractmethod
    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Text features (N, D), not normalised, of ids (N, L) with ``embeddings`` (N, L, W) in place of their own.

        The ids still determine the end position and the padding mask. Differentiable in ``embeddings`` and thread-safe.
        """

    def lengths(self, ids: Tensor) -> Tensor:
        """Number of tokens of each text, special tokens included and padding not: (N, L) → (N,)."""
        if self.causal is not None:
            return self.causal.ends(ids) + 1
        padding = self.tokenize([""])[0, -1].to(ids.device)
        return ids.shape[1] - (ids == padding).flip(1).cumprod(1).sum(1)

    @cached_property
    def start_length(self) -> int:
        """Number of special tokens before the text: 1 for CLIP and BERT, 0 for SigLIP."""
        empty, x = self.tokenize(["", "x"]).cpu()
        return int((empty == x).long().cumprod(0).sum())


class ModelTextTower(TextTower):
    """The text tower of a model with ``encode_text(ids)``."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        text = getattr(model, "text", model)
        self._model = model
        # of open_clip's towers, or of transformers' (on their own or inside)
        inner = text if hasattr(text, "token_embedding") or hasattr(text, "get_input_embeddings") else text.transformer
        self._embedding: Any = getattr(inner, "token_embedding", None) or inner.get_input_embeddings()
        self.width = self._embedding.weight.shape[1]
        self.device = self._embedding.weight.device
        # the text tower's own length: CoCa's outer model counts its caption decoder
        self.context_length = int(text.context_length)
        self._tokenizer = tokenizer
        checked = [self.tokenize(["x"])]
        with torch.no_grad():
            self.output_dim: int = model.encode_text(checked[0]).shape[1]
        for prompt in _CHECK_PROMPTS:
            with suppress(OtptError):  # too long for a tower of short texts
                checked.append(self.tokenize([prompt]))
        self.causal = read_causal_tower(text, torch.cat(checked), model.encode_text)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids = tokenize(self._tokenizer, texts, self.context_length)
        known, largest = self._embedding.weight.shape[0], int(ids.max()) if ids.numel() else 0
        if largest >= known:
            raise OtptError(
                f"The text tower has embeddings of {known:,} tokens, but its tokenizer gave the token {largest}; "
                "expected a tokenizer and weights of the same model."
            )
        return ids.to(self.device)

    def embed(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self._embedding(ids.to(self.device))
        return embeddings

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        if _replace_output not in self._embedding._forward_hooks.values():
            self._embedding.register_forward_hook(_replace_output)
        _local.replacement = self._embedding, embeddings
        try:
            features: Tensor = self._model.encode_text(ids.to(self.device))
        finally:
            del _local.replacement
        return features


def _replace_output(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
    """Replace the output of an embedding module in the thread that called ``encode_embeddings``."""
    replaced, embeddings = getattr(_local, "replacement", (None, None))
    return embeddings if replaced is module else None


def tokenize(tokenizer: Any, texts: Sequence[str], length: int) -> Tensor:
    """Token ids (N, L) int64 of any tokenizer, padded; ``OtptError`` for a text of more than L tokens."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one string")
    ids = _token_ids(tokenizer, [*texts, ""], length)
    ids, empty = ids[:-1], ids[-1]
    full = (ids[:, -2:] != empty[-2:]).any(dim=1).nonzero()[:, 0].tolist()
    if not full:
        return ids
    # no padding at the end: was it truncated?
    longer = _token_ids(tokenizer, [*(texts[row] for row in full), ""], 2 * length)
    longer, empty = longer[:-1], longer[-1]
    whole = torch.cat([ids[full], empty[length:].expand(len(full), -1)], dim=1)
    for row, differs in zip(full, (longer != whole).any(dim=1).tolist(), strict=True):
        if differs:
            shown = texts[row] if len(texts[row]) <= 60 else texts[row][:57] + "..."
            raise OtptError(
                f"The text {shown!r} has more tokens than the {length} that the text tower reads; shorten the class "
                "name or the prompt."
            )
    return ids


def _token_ids(tokenizer: Any, texts: list[str], length: int) -> Tensor:
    """Token ids (N, length), truncated.

    Tokenizers of open_clip are called with ``context_length=``, those of transformers with ``max_length=``, and any
    other function with the texts alone; it returns ids (N, any length).
    """
    if not callable(tokenizer):
        raise OtptError(f"The tokenizer is {tokenizer!r}; expected a function of texts that returns token ids.")
    if hasattr(tokenizer, "pad_token_id") and hasattr(tokenizer, "convert_ids_to_tokens"):
        found = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        ids: Tensor = found["input_ids"]
    elif "context_length" in inspect.signature(tokenizer).parameters:
        ids = tokenizer(texts, context_length=length)
    else:
        rows = [torch.as_tensor(row) for row in tokenizer(texts)]
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : min(len(row), length)] = row[:length]
    return ids.long()
