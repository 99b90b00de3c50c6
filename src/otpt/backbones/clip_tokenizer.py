"""CLIP's byte-pair tokenizer: open_clip's file, loaded without the rest of open_clip, whose import takes seconds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor


class ClipTokenizer:
    """Texts → token ids (N, L): start 49406, end 49407, padding 0. "a photo of a" → 320 1125 539 320."""

    def __call__(self, texts: Sequence[str], context_length: int = 77) -> Tensor:
        ids: Tensor = _tokenizer()(list(texts), context_length=context_length)
        return ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        ids: list[int] = _tokenizer().encode(text)
        return ids

    @property
    def bpe_ranks(self) -> dict[tuple[str, str], int]:
        """The merges, in order."""
        ranks: dict[tuple[str, str], int] = _tokenizer().bpe_ranks
        return ranks


@cache
def _tokenizer() -> Any:
    loaded = sys.modules.get("open_clip.tokenizer")
    package = importlib.util.find_spec("open_clip")  # finds it, imports nothing
    if loaded is None and package is not None and package.submodule_search_locations:
        file = Path(package.submodule_search_locations[0]) / "tokenizer.py"
        spec = importlib.util.spec_from_file_location("otpt.backbones._open_clip_tokenizer", file)
        if spec is not None and spec.loader is not None:
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
    return loaded._tokenizer  # type: ignore[union-attr]
