"""Tokenizers of any make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer

from otpt.backbones.text_tower import tokenize
from otpt.errors import OtptError

THEIRS = SimpleTokenizer()


def letters(texts: list[str]) -> list[list[int]]:
    """A tokenizer that knows nothing of lengths: one token per letter."""
    return [[ord(letter) for letter in text] for text in texts]


def padded_letters(texts: list[str]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in letters(texts)], batch_first=True)


def transformers_tokenizer() -> Any:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", "a", "b", "x"])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize(
    ("make", "ids"),
    [
        (lambda: THEIRS, [49406, 320, 321, 49407, 0, 0]),
        (transformers_tokenizer, [3, 4, 1, 0, 0, 0]),
        (lambda: letters, [97, 32, 98, 0, 0, 0]),
        (lambda: padded_letters, [97, 32, 98, 0, 0, 0]),
    ],
    ids=["open_clip", "transformers", "lists", "tensors"],
)
def test_any_tokenizer_pads_and_never_truncates(make: Any, ids: list[int]) -> None:
    tokenizer = make()
    assert tokenize(tokenizer, ["a b"], 6).tolist() == [ids]
    whole = {49406: "a b a b", 3: "a b a b a", 97: "a b ab"}[ids[0]]
    assert tokenize(tokenizer, [whole], 6)[0, -1] in (49407, 1, ord("b"))
    with pytest.raises(OtptError, match=f"'{whole} x' .*6"):
        tokenize(tokenizer, [f"{whole} x"], 6)


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(OtptError, match="7"):
        tokenize(7, ["one text"], 6)
    with pytest.raises(TypeError):
        tokenize(THEIRS, "one text", 6)
