"""Prompts, templates, descriptions and text features as plain data: reading, writing, equality and hash."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_clip.zero_shot_metadata import SIMPLE_IMAGENET_TEMPLATES
from torch import Tensor

from otpt.errors import OtptError
from otpt.prompts import DEFAULT_PROMPT, Descriptions, Prompt, Templates, TextFeatures
from otpt.prompts.prompt import PLACE, FixedTexts

Texts: TypeAlias = Prompt | FixedTexts

letters = st.characters(exclude_categories=["Cs"], exclude_characters="{}")
words = st.text(letters, max_size=8)
sentences = st.tuples(words, words).map("{}".join).filter(lambda text: text.count("{}") == 1)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    parts = draw(st.lists(st.sampled_from(["a photo", "of", ".", "[CLS]", "_", " ", "{", "é"]) | words, max_size=5))
    text = " ".join(["a", *parts]) if draw(st.booleans()) else "a".join(parts)
    tokens = draw(st.none() | st.integers(1, 20))
    try:
        return Prompt(text, tokens)
    except OtptError:  # no words, or the class name twice
        return Prompt(tokens=tokens)


names = words.filter(str.strip)
templates = st.builds(Templates, names, st.lists(sentences, min_size=1, max_size=4))
descriptions = st.builds(
    Descriptions, st.lists(st.lists(names, min_size=1, max_size=3), max_size=4), st.just("descriptions") | words
)


@given(prompts() | templates | descriptions)
def test_plain_data_are_read_as_written(texts: Texts) -> None:
    plain = texts.to_json()
    again = type(texts).read(json.loads(json.dumps(plain)))
    assert again == texts
    assert hash(again) == hash(texts)
    assert again.to_json() == plain
    assert type(texts).read(texts) is texts


@given(prompts(), names.filter(lambda name: PLACE not in name))
def test_a_prompt_read_again_has_the_same_sentences(prompt: Prompt, name: str) -> None:
    assert Prompt.read(prompt.to_json()).sentence(name) == prompt.sentence(name)


def test_forms_of_plain_data() -> None:
    assert Prompt.read("a_photo_of_a") == DEFAULT_PROMPT == Prompt.read({})
    assert Prompt.read({"words": "an image of", "tokens": 2}) == Prompt("an image of", tokens=2)
    assert Prompt("an image of", tokens=2).to_json() == {"words": "an image of", "tokens": 2}
    assert Prompt("a {} in a video game.").to_json() == "a [CLS] in a video game"
    assert Templates.read(["{}.", "a {}."]) == Templates("templates", ("{}.", "a {}."))
    assert Templates.read(("{}.",)).to_json() == {"name": "templates", "sentences": ["{}."]}
    functions = Templates.read(SIMPLE_IMAGENET_TEMPLATES)
    assert functions.sentences[0] == "itap of a {}."
    assert len(functions.sentences) == 7
    assert Templates.read({"name": "mine", "sentences": ["{}."]}).name == "mine"
    assert Descriptions.read({"descriptions": ["black", ["red", "small"]]}).texts == (("black",), ("red", "small"))


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (Prompt, 3, "3"),
        (Prompt, ["a photo of a"], "a photo of a"),
        (Prompt, None, "None"),
        (Prompt, {"word": "a"}, "'word'"),
        (Prompt, {"words": 3}, "3"),
        (Prompt, {"tokens": "2"}, "'2'"),
        (Prompt, {"tokens": True}, "True"),
        (Prompt, {"tokens": 0}, "0"),
        (Prompt, {"vectors": "0123"}, "'vectors'"),
        (Prompt, Templates("mine", ["{}."]), "Templates"),
        (Templates, "a photo of a {}.", "a photo of a"),
        (Templates, 3, "3"),
        (Templates, {"a {}.", "{}."}, "{}"),
        (Templates, [], "empty"),
        (Templates, [3], "3"),
        (Templates, {"name": 3, "sentences": ["{}."]}, "3"),
        (Templates, {"sentences": "{}."}, "list"),
        (Templates, {"sentences": ["{}."], "words": "a"}, "'words'"),
        (Templates, DEFAULT_PROMPT, "Prompt"),
        (Descriptions, ["black"], "black"),
        (Descriptions, {"descriptions": "black"}, "black"),
        (Descriptions, {"descriptions": [["black"], 3]}, "3"),
        (Descriptions, {"descriptions": [[]]}, "Class 1"),
        (Descriptions, {"descriptions": [["black"]], "name": 3}, "3"),
        (Descriptions, {"descriptions": [["black"]], "names": "a"}, "'names'"),
        (TextFeatures, [[1.0, 0.0]], "1.0"),
        (TextFeatures, {"text_features": "0123"}, "0123"),
        (TextFeatures, torch.zeros(2, 3), "zero"),
        (TextFeatures, np.ones(3), r"\(3,\)"),
    ],
)
def test_other_values_are_refused(kind: type[Texts], value: object, shown: str) -> None:
    with pytest.raises(OtptError, match=shown):
        kind.read(value)


def features(seed: int = 0, *shape: int) -> Tensor:
    return torch.randn(*(shape or (3, 8)), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("make", [TextFeatures, Prompt.learned])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_tensors_are_compared_by_value(make: Callable[[Tensor], Texts], copied: Callable[[Texts], Texts]) -> None:
    texts = make(features())
    assert texts == make(features().double().float()) == copied(texts)
    assert hash(texts) == hash(make(features())) == hash(copied(texts))
    changed = features()
    changed[2, 7] += 1
    others = [make(changed), make(features(1)), make(features().reshape(6, 4))]
    assert len({texts, *others}) == 4
    assert texts != texts.name
    assert texts.to_json() in ({"text_features": texts.digest}, {"vectors": texts.digest})
    assert all(texts.to_json() != other.to_json() for other in others[:2])


def test_names_and_shapes_count() -> None:
    assert TextFeatures(features(), "mine") != TextFeatures(features())
    assert Prompt.learned(features(0, 2, 4, 8)) != Prompt.learned(features(0, 4, 4, 4))  # the same numbers and words
    by_class = features(0, 2, 4, 8)
    assert Prompt.learned(by_class, class_names=("a", "b")) != Prompt.learned(by_class, class_names=("a", "c"))


def test_text_features_are_read_from_tensors_and_arrays() -> None:
    assert TextFeatures.read(features()) == TextFeatures.read(features().numpy()) == TextFeatures(features())
