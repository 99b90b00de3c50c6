"""The text side of a backbone: tokens in, text features out, for any kind of tower."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.tokens import Tokenizer
from otpt.backbones.towers.causal_tower import CausalTower, read_causal_tower
from otpt.errors import OtptError

#: Prompts on which the canonical form is checked at loading: short, long, with digits and punctuation.
_CHECK_PROMPTS = ("x", "a photo of a cat.", "a photo of a 2012 Tesla Model S (sedan), from the side.")


class TextTower:
    """Text tower of a model that has ``encode_text(ids, normalize=False)``.

    Attributes: ``width`` W, ``output_dim`` D, ``context_length`` L, ``start_length`` (special tokens before
    the text), and ``causal``, the canonical weights if this is a CLIP text tower (else ``None``: use
    ``encode_embeddings``). ``autocast``: the type in which prompts are encoded, ``None`` for that of the weights.
    """

    autocast: torch.dtype | None = None

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._embedding = _token_embedding(model)
        self._swap = _EmbeddingSwap(self._embedding)
        self.width: int = self._embedding.weight.shape[1]
        self.context_length: int = tokenizer.context_length
        self.start_length: int = tokenizer.start_length
        self.causal: CausalTower | None = self._read_causal()
        with torch.no_grad():
            self.output_dim: int = self._encode(self.tokenize(["x"])).shape[1]

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids (N, L) int64, padded, on the tower's device; ``OtptError`` for a text that does not fit."""
        ids = self._tokenizer(texts)
        known, largest = self._embedding.weight.shape[0], int(ids.max()) if ids.numel() else 0
        if largest >= known:
            raise OtptError(
                f"The text tower has embeddings of {known:,} tokens, but its tokenizer gave the token {largest}; "
                "expected a tokenizer and weights of the same model."
            )
        return ids.to(self.device)

    def lengths(self, ids: Tensor) -> Tensor:
        """Number of tokens of each text, special tokens included: (N, L) → (N,).

        A causal tower reads no further than the end token. Elsewhere trailing padding is not counted.
        """
        if self.causal is not None:
            return self.causal.ends(ids) + 1
        padding = int(self.tokenize([""])[0, -1])
        return ids.shape[1] - (ids == padding).flip(1).cumprod(1).sum(1)

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings (…, W) of ids (…), without positions."""
        embeddings: Tensor = self._embedding(ids.to(self.device))
        return embeddings

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Text features (N, D), not normalised, of ids (N, L) whose embeddings are replaced by
        ``embeddings`` (N, L, W).

        The ids still decide what the model reads from them (end position, padding mask). Differentiable in
        ``embeddings``; works for every tower, and from several threads at once.
        """
        with self._swap.by(embeddings):
            return self._encode(ids.to(self.device))

    def _encode(self, ids: Tensor) -> Tensor:
        features: Tensor = self._model.encode_text(ids, normalize=False)
        return features

    def _read_causal(self) -> CausalTower | None:
        ids = self.tokenize([text for text in _CHECK_PROMPTS if self._tokenizer.count(text) <= self.context_length])
        text = getattr(self._model, "text", self._model)
        end_token = self._tokenizer.end_token
        if getattr(text, "text_pool_type", getattr(text, "pool_type", "")) == "eos":
            end_token = getattr(text, "text_eos_id", getattr(text, "eos_id", None))
        return read_causal_tower(text, end_token, ids, self._encode) if len(ids) else None


class _EmbeddingSwap:
    """Replaces the output of an embedding module, for one thread and one call at a time.

    A permanent hook looks into thread-local memory, so that one thread's replacement is never seen by another.
    """

    def __init__(self, module: nn.Module) -> None:
        self._local = threading.local()
        hooks = module._forward_hooks  # of a tower that this module is a copy of
        for key in [key for key, hook in hooks.items() if isinstance(hook, _EmbeddingSwap)]:
            del hooks[key]
        module.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        replacement: Tensor | None = getattr(self._local, "replacement", None)
        return replacement

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies of the module: nothing of what threads are doing."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._local = threading.local()

    @contextmanager
    def by(self, embeddings: Tensor) -> Iterator[None]:
        """Within this block, and in this thread, the module gives ``embeddings``."""
        self._local.replacement = embeddings
        try:
            yield
        finally:
            self._local.replacement = None


def _token_embedding(model: Any) -> Any:
    """What turns token ids into embeddings: in ``CLIP``, in a ``TextTransformer``, in a tower of transformers."""
    text = getattr(model, "text", model)
    if hasattr(text, "token_embedding"):
        return text.token_embedding
    return text.transformer.get_input_embeddings()
