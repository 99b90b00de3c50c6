"""Tokenizers of any make, and CLIP's own without the package open_clip."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer

from otpt.backbones import clip_tokenizer
from otpt.backbones.clip_tokenizer import ClipTokenizer
from otpt.backbones.text_tower import Tokenizer
from otpt.errors import OtptError

WORDS = st.sampled_from(
    ["a photo of a", "it's", "2012", "&amp;", "Ã©", "naïve", "日本語", "🙂", "<end_of_text>", "  ", "_"]
)
THEIRS = SimpleTokenizer()

POCKET = """
import sys, torch, otpt
backbone = otpt.load_backbone("pocket", device="cpu")
backbone.encode_pixels(torch.zeros(2, 3, 64, 64))
print(backbone.text.tokenize(["a cat"])[0, :4].tolist())
print(sorted({"open_clip", "timm", "torchvision", "transformers", "torch._dynamo"} & sys.modules.keys()))
"""


@pytest.fixture
def alone() -> Any:
    """The tokenizer of a process that has not imported open_clip."""
    clip_tokenizer._tokenizer.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "open_clip.tokenizer")
        assert not isinstance(clip_tokenizer._tokenizer(), SimpleTokenizer)
    yield ClipTokenizer()
    clip_tokenizer._tokenizer.cache_clear()


def test_ids_are_those_of_open_clip(alone: ClipTokenizer) -> None:
    @settings(deadline=None)
    @given(text=st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join)))
    def check(text: str) -> None:
        assert alone.encode(text) == THEIRS.encode(text)
        assert torch.equal(alone([text], context_length=20), THEIRS([text], context_length=20))

    check()
    assert torch.equal(pickle.loads(pickle.dumps(alone))(["A Cat"]), THEIRS(["A Cat"]))


@pytest.mark.slow
def test_pocket_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", POCKET], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[49406, 320, 2368, 49407]", "[]", ""]


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
        (ClipTokenizer, [49406, 320, 321, 49407, 0, 0]),
        (transformers_tokenizer, [3, 4, 1, 0, 0, 0]),
        (lambda: letters, [97, 32, 98, 0, 0, 0]),
        (lambda: padded_letters, [97, 32, 98, 0, 0, 0]),
    ],
    ids=["open_clip", "clip", "transformers", "lists", "tensors"],
)
def test_any_tokenizer_pads_and_never_truncates(make: Any, ids: list[int]) -> None:
    tokenizer = Tokenizer(make(), 6)
    assert tokenizer(["a b"]).tolist() == [ids]
    whole = {49406: "a b a b", 3: "a b a b a", 97: "a b ab"}[ids[0]]
    assert tokenizer([whole])[0, -1] in (49407, 1, ord("b"))
    with pytest.raises(OtptError, match=f"'{whole} x' .*6"):
        tokenizer([f"{whole} x"])


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(OtptError, match="7"):
        Tokenizer(7, 6)
    with pytest.raises(TypeError):
        Tokenizer(THEIRS, 6)("one text")
