"""From texts to token ids, without silent truncation.

open_clip's tokenizers truncate long texts. Here tokens are counted first, and a text that does not fit
raises an error that names it. CLIP's byte-pair encoding is part of open_clip, so nothing is downloaded.

    "a photo of a" → 320 1125 539 320;  "." → 269;  start 49406, end 49407, padding 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from otpt.errors import OtptError


class Tokenizer:
    """An open_clip tokenizer that counts before it cuts."""

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        if not _is_byte_pair(tokenizer) and not _wraps_transformers(tokenizer):
            raise TypeError(f"expected one of open_clip's tokenizers, got {type(tokenizer).__name__}")
        self._tokenizer = tokenizer
        self.context_length = context_length

    @property
    def end_token(self) -> int | None:
        """The id of CLIP's end token; ``None`` for vocabularies of other makers."""
        return self._tokenizer.eot_token_id if _is_byte_pair(self._tokenizer) else None

    @property
    def start_length(self) -> int:
        """How many special tokens stand before the text: 1 for CLIP and BERT, 0 for SigLIP."""
        if _is_byte_pair(self._tokenizer) or getattr(self._tokenizer, "tokenizer_mode", None):
            return 1
        inner = self._tokenizer.tokenizer
        bare: list[int] = inner("x", add_special_tokens=False).input_ids
        return next((at for at, token in enumerate(inner("x").input_ids) if token == bare[0]), 0)

    def count(self, text: str) -> int:
        """How many tokens ``text`` takes, special ones included."""
        tokenizer = self._tokenizer
        if _is_byte_pair(tokenizer):
            return len(tokenizer.encode(text)) + 2
        cleaned = tokenizer.clean_fn(text)
        if getattr(tokenizer, "tokenizer_mode", None):  # "clips": start, end and a class token of its own
            return len(tokenizer.tokenizer(cleaned, add_special_tokens=False).input_ids) + 3
        return len(tokenizer.tokenizer(cleaned).input_ids)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Token ids (N, L) int64, padded; ``OtptError`` for a text of more than L tokens."""
        if isinstance(texts, str):
            raise TypeError("expected a sequence of texts, got one string")
        for text in texts:
            count = self.count(text)
            if count > self.context_length:
                shown = text if len(text) <= 60 else text[:57] + "..."
                raise OtptError(
                    f"The text {shown!r} has {count} tokens, but the text tower reads at most "
                    f"{self.context_length}; shorten the class name or the prompt."
                )
        ids: Tensor = self._tokenizer(list(texts), context_length=self.context_length)
        return ids.long()


def _is_byte_pair(tokenizer: Any) -> bool:
    """Whether this is open_clip's ``SimpleTokenizer``; by its parts, which tells without importing open_clip."""
    return all(hasattr(tokenizer, part) for part in ("bpe_ranks", "encode", "eot_token_id"))


def _wraps_transformers(tokenizer: Any) -> bool:
    """Whether this is open_clip's ``HFTokenizer`` or ``SigLipTokenizer``."""
    return all(hasattr(tokenizer, part) for part in ("tokenizer", "clean_fn"))
