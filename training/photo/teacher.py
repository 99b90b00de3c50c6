"""Sentence embeddings of the texts: what the text tower learns to compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

_BATCH = 128


@torch.inference_mode()
def sentence_embeddings(texts: Sequence[str], folder: Path) -> Tensor:
    """Return unit embeddings (N, 384), computed in batches of similar length."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = AutoModel.from_pretrained(folder).eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    embeddings = torch.empty(len(texts), 384)
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
        mask = batch["attention_mask"][..., None]
        hidden = encoder(**batch).last_hidden_state
        embeddings[rows] = normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        if start % (50 * _BATCH) == 0:
            print(f"sentence embeddings: {start} of {len(texts)}", flush=True)
    return embeddings


def teach(nouns: Sequence[str], glosses: Sequence[str], folder: Path, cache: Path) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the nouns, each in a sentence, and of the glosses; read from ``cache`` if it exists."""
    if not cache.is_file():
        sentences = [f"a photo of a {noun}." for noun in nouns]
        embeddings = sentence_embeddings([*sentences, *glosses], folder)
        partial = cache.with_suffix(".partial")
        torch.save(embeddings.half(), partial)
        partial.rename(cache)
    embeddings = torch.load(cache, weights_only=True).float()
    if len(embeddings) != len(nouns) + len(glosses):
        raise SystemExit(f"{cache} is of other texts; remove it.")
    return embeddings[: len(nouns)], embeddings[len(nouns) :]
