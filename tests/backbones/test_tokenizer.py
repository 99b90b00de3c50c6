"""CLIP's tokenizer without the package open_clip: the same ids for any text."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer

from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.tokens import Tokenizer

pytestmark = pytest.mark.slow

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


@cache
def alone() -> SimpleTokenizer:
    """As in a process that has not imported open_clip."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "open_clip.tokenizer")
        made = clip_tokenizer()
    assert not isinstance(made, SimpleTokenizer)
    return made


@cache
def theirs() -> SimpleTokenizer:
    return SimpleTokenizer()


@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join)))
def test_ids_are_those_of_open_clip(text: str) -> None:
    assert alone().encode(text) == theirs().encode(text)
    assert torch.equal(alone()([text], context_length=20), theirs()([text], context_length=20))


def test_the_class_of_an_imported_open_clip_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(clip_tokenizer()) is SimpleTokenizer
    monkeypatch.delitem(sys.modules, "open_clip.tokenizer")
    assert type(clip_tokenizer()) is type(alone())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "from . import other\n\nclass SimpleTokenizer:\n    def __init__(self, context_length): pass\n",
            "open_clip.tokenizer",
        ),
        ("from . import missing\n", "ImportError"),
    ],
    ids=["with-it", "broken"],
)
def test_a_file_that_needs_its_package_is_imported_with_it(text: str, told: str, tmp_path: Path) -> None:
    package = tmp_path / "open_clip"
    package.mkdir()
    for name, content in (("__init__", ""), ("other", ""), ("tokenizer", text)):
        (package / f"{name}.py").write_text(content, encoding="utf-8")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from otpt.backbones.sources.clip_tokenizer import clip_tokenizer\n"
        "print(type(clip_tokenizer()).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert told in (done.stdout or done.stderr)


def test_each_has_its_own_context_length_and_options() -> None:
    short, long, exact = clip_tokenizer(5), clip_tokenizer(9), clip_tokenizer(9, clean="whitespace")
    assert short(["a cat"]).shape == (1, 5)
    assert long(["a cat"]).shape == (1, 9)
    assert torch.equal(exact(["a Cat"])[0, :2], long(["a Cat"])[0, :2])
    assert not torch.equal(exact(["a Cat"]), long(["a Cat"]))


@pytest.mark.slow
def test_a_pickle_of_one_that_was_loaded_alone() -> None:
    """Its module has no name that another process could import."""
    program = (
        "import pickle, sys; from otpt.backbones.sources.clip_tokenizer import clip_tokenizer\n"
        "for options in ({}, {'clean': 'whitespace'}):\n"
        "    made = clip_tokenizer(16, **options); copy = pickle.loads(pickle.dumps(made))\n"
        "    assert 'open_clip' not in sys.modules and copy.context_length == 16\n"
        "    assert made(['A Cat & 2 dogs']).tolist() == copy(['A Cat & 2 dogs']).tolist()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_tokenizer_is_known_by_its_parts() -> None:
    for tokenizer in (alone(), theirs(), clip_tokenizer()):
        counting = Tokenizer(tokenizer, 77)
        assert (counting.end_token, counting.start_length, counting.count("a cat")) == (49407, 1, 4)
    with pytest.raises(TypeError, match="expected one of open_clip's tokenizers, got function"):
        Tokenizer(open_clip.tokenize, 77)
