"""Text tower of a backbone: texts → token ids → embeddings → text features."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from otpt.backbones.causal import read_causal_tower
from otpt.backbones.hf_tokenizers import prepare_tokenizer
from otpt.backbones.modules import ClipModule, Tokenizer
from otpt.backbones.protocols import TextEncoder
from otpt.errors import OtptError

_CHECK_PROMPTS = ("a photo of a cat.", "a photo of a 2012 Tesla Model S (sedan), from the side.")
"""Prompts for comparing the canonical form with the model."""

_PADDING_TOLERANCE = 1e-5
"""Maximum relative difference between features with and without padding: rounding gives 1e-7, a tower that reads its
padding far more."""

_local = threading.local()


class ModelTextTower(TextEncoder):
    """Text tower of a model with ``encode_text(ids)``."""

    def __init__(self, model: ClipModule, tokenizer: Tokenizer) -> None:
        text = cast(nn.Module, getattr(model, "text", model))
        self._model = model
        self._embedding = _token_embedding(text)
        self.width = self._embedding.weight.shape[1]
        self.device = self._embedding.weight.device
        self.context_length = _context_length(text, tokenizer)
        self._tokenizer = tokenizer
        checked = [self.tokenize(["x"])]
        with torch.no_grad():
            self.output_dim: int = model.encode_text(checked[0]).shape[1]
        for prompt in _CHECK_PROMPTS:
            with suppress(OtptError):  # too long for the tower
                checked.append(self.tokenize([prompt]))
        self.causal = read_causal_tower(text, torch.cat(checked), model.encode_text)
        self.ignores_padding = self.causal is None and self._ignores_padding(torch.cat(checked))

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids = tokenize(self._tokenizer, texts, self.context_length)
        vocabulary = self._embedding.weight.shape[0]
        largest = int(ids.max()) if ids.numel() else 0
        if largest >= vocabulary:
            raise OtptError(
                f"The text tower has {vocabulary:,} token embeddings, but the tokenizer returned the id {largest}; "
                "expected tokenizer and weights of the same model."
            )
        return ids.to(self.device)

    def _ignores_padding(self, ids: Tensor) -> bool:
        """Return whether the features of texts (N, L) are the same without the padding that all of them have."""
        length = padded_length(self, ids)
        if length == ids.shape[1]:
            return False
        with torch.no_grad(), suppress(RuntimeError, ValueError, IndexError, TypeError):
            whole, trimmed = self._model.encode_text(ids), self._model.encode_text(ids[:, :length])
            return bool((whole - trimmed).abs().max() <= _PADDING_TOLERANCE * whole.abs().max())
        return False  # a tower that requires texts of its context length

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


def padded_length(tower: TextEncoder, ids: Tensor) -> int:
    """Return the number of tokens up to the first padding token of the longest text, of ids (N, L)."""
    # the first padding token may be the end token of the text
    return min(int(tower.lengths(ids).max()) + 1, ids.shape[1])


class _HasLength(Protocol):
    context_length: int


def _context_length(text: nn.Module, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a padded text.

    It is the text tower's, because the length of CoCa's outer model includes its caption decoder; but a tower of
    transformers has the number of its positions (514 for XLM-RoBERTa, none for T5), while its texts had the length of
    the tokenizer in training.
    """
    length = int(cast(_HasLength, text).context_length)
    of_tokenizer = getattr(tokenizer, "context_length", None)
    if hasattr(text, "config") and of_tokenizer:
        return min(length or of_tokenizer, int(of_tokenizer))
    return length


def _token_embedding(text: nn.Module) -> nn.Embedding:
    """Return the token embedding of a tower of open_clip or transformers, which open_clip may have wrapped."""
    if not hasattr(text, "token_embedding") and not hasattr(text, "get_input_embeddings"):
        text = text.get_submodule("transformer")
    if hasattr(text, "token_embedding"):
        return cast(nn.Embedding, text.token_embedding)
    return cast(Callable[[], nn.Embedding], text.get_input_embeddings)()


def _replace_output(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
    """Replace the output of an embedding module in the thread that called ``encode_embeddings``."""
    replaced, embeddings = getattr(_local, "replacement", (None, None))
    return embeddings if replaced is module else None


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Tensor:
    """Return padded token ids (N, L) int64 of any tokenizer; raise ``OtptError`` for a text of more than L tokens."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one string")
    ids = _token_ids(tokenizer, [*texts, ""], length)
    ids, empty = ids[:-1], ids[-1]
    full = (ids[:, -2:] != empty[-2:]).any(dim=1).nonzero()[:, 0].tolist()
    if not full:
        return ids
    leading = ids[full[0], :2]
    if bool((leading == empty[0]).all()):
        raise OtptError(
            f"The tokenizer {type(tokenizer).__name__} pads texts on the left; expected padding on the right, as in "
            "the training of text towers: set tokenizer.padding_side = 'right'."
        )
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


def _token_ids(tokenizer: Tokenizer, texts: list[str], length: int) -> Tensor:
    """Return token ids (N, length), truncated.

    Tokenizers of open_clip are called with ``context_length=``, tokenizers of transformers with ``max_length=``, other
    functions with the texts only; these may return ids of any length.
    """
    if not callable(tokenizer):
        raise OtptError(f"The tokenizer is {tokenizer!r}; expected a function from texts to token ids.")
    tokenizer = cast(Tokenizer, prepare_tokenizer(tokenizer, None))
    if "context_length" in inspect.signature(tokenizer).parameters:
        return cast(Tensor, tokenizer(texts, context_length=length)).long()
    rows = [torch.as_tensor(row) for row in cast(Iterable[Sequence[int]], tokenizer(texts))]
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : min(len(row), length)] = row[:length]
    return ids
