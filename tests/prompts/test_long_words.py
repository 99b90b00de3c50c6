"""Prompts whose words have several tokens: for every method that tunes no context, and refused by the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.data.images import image
from oracles.methods.inputs import CLASSES, with_inputs
from oracles.models.tiny import tiny_backbone

from otpt import Classifier, OtptError
from otpt.backbones import text_encoder
from otpt.methods import known_parts, prompt_facts
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.prompts import Prompt, prompt_encoder, tokenize_prompts
from otpt.prompts.tokens import fixed_tokens, whole_context

WORDS = "a histopathology slide showing"
EXAMPLES = {name: [image(10 * i + j) for j in range(2)] for i, name in enumerate(CLASSES)}


def fields_of(name: str) -> dict[str, Any]:
    method = with_inputs(name)
    fields: dict[str, Any] = {"classes": CLASSES, "method": method, "prompt": WORDS}
    if method.init in EXAMPLE_INITS:
        fields["examples"] = EXAMPLES
    if name == "multi-label":
        return {**fields, "multi_label": True}
    return {**fields, "views": 24}


def untuned() -> list[str]:
    """Methods of one part that start from words, or may use them, and tune no context."""
    names = []
    for name, part in known_parts().items():
        if part.axis not in ("init", "adapt", "aggregate"):
            continue
        try:
            method = with_inputs(name)
        except OtptError:  # a part that needs another one
            continue
        words = method.starts_from_words or method.init in EXAMPLE_INITS
        elsewhere = method.preparation.own_network or method.sees_all_first or method.init == "attributes"
        if words and not elsewhere and not method.needs_context and name not in TUNE_THEMSELVES:
            names.append(name)
    return names


TUNE_THEMSELVES = {"promptsmooth"}
"""Systems that tune a context by themselves."""


@pytest.mark.filterwarnings("ignore:The class")
@pytest.mark.parametrize("name", untuned())
def test_methods_that_tune_nothing_take_any_words(name: str) -> None:
    fields = fields_of(name)
    rows = [
        Classifier(tiny_backbone(), **{**fields, "prompt": words}).predict(image(1)).probabilities
        for words in (WORDS, "a photo of a")
    ]
    assert np.isfinite(rows).all()
    assert not np.array_equal(*rows)


@pytest.mark.parametrize("method", ["tpt", "o-tpt"])
def test_methods_that_tune_say_how_many_tokens_there_are(method: str) -> None:
    with pytest.raises(OtptError, match="tunes no context"):
        Classifier(tiny_backbone(), method, classes=CLASSES, prompt=WORDS)
    assert Classifier(tiny_backbone(), method, classes=CLASSES, prompt=WORDS, all_tokens=True, views=8).predict(
        image(1)
    )


@pytest.mark.parametrize("words", ["a photo of a", "a photo of [CLS] in the wild", "[CLS], a kind of thing"])
def test_text_features_are_those_of_the_same_sentences(words: str) -> None:
    backbone = tiny_backbone()
    tower = text_encoder(backbone)
    prompt = Prompt(words)
    features = []
    for tokens in (
        tokenize_prompts(tower, CLASSES, whole_context(tower, prompt)),
        fixed_tokens(tower, CLASSES, prompt),
    ):
        features.append(prompt_encoder(tower, tokens).encode(tokens.start[None])[0])
    assert torch.equal(*features)


def test_facts_and_calibrations_know_the_words(tmp_path: Path) -> None:
    clf = Classifier(tiny_backbone(), "zero-shot", classes=CLASSES, prompt=WORDS)
    assert prompt_facts(clf.task, clf.protocol, clf.method)["words"] == WORDS
    clf.calibrate([image(i) for i in range(24)], [i % len(CLASSES) for i in range(24)])
    with pytest.raises(OtptError, match="prompt"):
        clf.set_classes(CLASSES, prompt="a photo of a")
