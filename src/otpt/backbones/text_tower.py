"""Text tower of a backbone: texts → token ids → embeddings → text features."""

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
"""Prompts for comparing the canonical form with the model."""

_local = threading.local()


class TextTower(ABC):
    """Base class of text towers.

    Attributes:
        width: width W of token embeddings.
        context_length: number L of tokens of a padded text.
        device: device of the embeddings.
        causal: canonical form of a CLIP text tower, for the fast encoder, or None.
        autocast: autocast dtype for encoding prompts, or None.
    """

    width: int
    context_length: int
    device: torch.device = torch.device("cpu")
    causal: CausalTower | None = None
    autocast: torch.dtype | None = None

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return padded token ids (N, L) int64 on the tower's device; raise ``OtptError`` for a too long text."""

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings (…, W) of ids (…), without positional embeddings."""

    @abstractmethod
    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Return unnormalised text features (N, D) of token embeddings (N, L, W).

        The ids (N, L) determine only the end position and the padding mask. Thread-safe, and differentiable with
        respect to ``embeddings``.
        """

    def lengths(self, ids: Tensor) -> Tensor:
        """Return the number of tokens per text, with special tokens and without padding: (N, L) → (N,)."""
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
    """Text tower of a model with ``encode_text(ids)``."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        text = getattr(model, "text", model)
        self._model = model
        # a tower of open_clip, or of transformers (directly or inside open_clip's wrapper)
        inner = text if hasattr(text, "token_embedding") or hasattr(text, "get_input_embeddings") else text.transformer
        self._embedding: Any = getattr(inner, "token_embedding", None) or inner.get_input_embeddings()
        self.width = self._embedding.weight.shape[1]
        self.device = self._embedding.weight.device
        # of the text tower, because the length of CoCa's outer model includes its caption decoder
        self.context_length = int(text.context_length)
        self._tokenizer = tokenizer
        checked = [self.tokenize(["x"])]
        with torch.no_grad():
            self.output_dim: int = model.encode_text(checked[0]).shape[1]
        for prompt in _CHECK_PROMPTS:
            with suppress(OtptError):  # too long for the tower
                checked.append(self.tokenize([prompt]))
        self.causal = read_causal_tower(text, torch.cat(checked), model.encode_text)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids = tokenize(self._tokenizer, texts, self.context_length)
        known, largest = self._embedding.weight.shape[0], int(ids.max()) if ids.numel() else 0
        if largest >= known:
            raise OtptError(
                f"The text tower has {known:,} token embeddings, but the tokenizer returned the id {largest}; expected "
                "tokenizer and weights of the same model."
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
    """Return padded token ids (N, L) int64 of any tokenizer; raise ``OtptError`` for a text of more than L tokens."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one string")
    ids = _token_ids(tokenizer, [*texts, ""], length)
    ids, empty = ids[:-1], ids[-1]
    full = (ids[:, -2:] != empty[-2:]).any(dim=1).nonzero()[:, 0].tolist()
    if not full:
        return ids
    # texts without padding may have been truncated: compare with the ids at twice the length
    longer = _token_ids(tokenizer, [*(texts[row] for row in full), ""], 2 * length)
    longer, empty = longer[:-1], longer[-1]
    whole = torch.cat([ids[full], empty[length:].expand(len(full), -1)], dim=1)
    for row, differs in zip(full, (longer != whole).any(dim=1).tolist(), strict=True):
        if differs:
            shown = texts[row] if len(texts[row]) <= 60 else texts[row][:57] + "..."
            raise OtptError(
                f"The text {shown!r} exceeds the {length} tokens of the text tower; shorten the class name or the "
                "prompt."
            )
    return ids


def _token_ids(tokenizer: Any, texts: list[str], length: int) -> Tensor:
    """Return token ids (N, length), truncated.

    Tokenizers of open_clip are called with ``context_length=``, tokenizers of transformers with ``max_length=``, other
    functions with the texts only; these may return ids of any length.
    """
    if not callable(tokenizer):
        raise OtptError(f"The tokenizer is {tokenizer!r}; expected a function from texts to token ids.")
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
