"""CLIP's tokenizer without the package open_clip: the same ids for any text."""

from __future__ import annotations

import sys

import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer

from otpt.backbones import clip_tokenizer as module
from otpt.backbones.clip_tokenizer import _load_alone, clip_tokenizer
from otpt.backbones.tokens import Tokenizer

WORDS = st.sampled_from(
    [
        "a photo of a",
        "Abyssinian",
        "it's",
        "2012",
        "&amp;",
        "Ã©",
        "naïve",
        "日本語",
        "🙂",
        "<end_of_text>",
        "  ",
        "\n",
        "_",
    ]
)


def alone() -> SimpleTokenizer:
    loaded = _load_alone()
    assert loaded is not None
    assert loaded is not open_clip.tokenizer
    return loaded.SimpleTokenizer()


ALONE, THEIRS = alone(), SimpleTokenizer()


@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join)))
def test_ids_are_those_of_open_clip(text: str) -> None:
    assert ALONE.encode(text) == THEIRS.encode(text)
    assert torch.equal(ALONE([text], context_length=20), THEIRS([text], context_length=20))


def test_the_class_of_an_imported_open_clip_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(clip_tokenizer()) is SimpleTokenizer
    monkeypatch.delitem(sys.modules, "open_clip.tokenizer")
    assert type(clip_tokenizer()) is type(ALONE)


def test_a_file_that_needs_its_package_is_imported_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load_alone", lambda: None)
    assert type(clip_tokenizer()) is SimpleTokenizer
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError):
        clip_tokenizer()


def test_each_has_its_own_context_length_and_options() -> None:
    short, long, exact = clip_tokenizer(5), clip_tokenizer(9), clip_tokenizer(9, clean="whitespace")
    assert short(["a cat"]).shape == (1, 5)
    assert long(["a cat"]).shape == (1, 9)
    assert torch.equal(exact(["a Cat"])[0, :2], long(["a Cat"])[0, :2])
    assert not torch.equal(exact(["a Cat"]), long(["a Cat"]))


def test_a_tokenizer_is_known_by_its_parts() -> None:
    for tokenizer in (ALONE, THEIRS, clip_tokenizer()):
        counting = Tokenizer(tokenizer, 77)
        assert (counting.end_token, counting.start_length, counting.count("a cat")) == (49407, 1, 4)
    with pytest.raises(TypeError, match="expected one of open_clip's tokenizers, got function"):
        Tokenizer(open_clip.tokenize, 77)
