"""DAC by the classes that a context was learned on."""

from __future__ import annotations

import math

import pytest
import torch
from oracles.methods import posthoc
from oracles.methods.posthoc_bench import NAMES, RECIPE, SEEDS, backbone, image

from otpt import Classifier, OtptError
from otpt.methods.prompt_tuning import prompt_state
from otpt.prompts import Prompt
from otpt.prompts.learned import CoopContext

pytestmark = pytest.mark.slow


def test_dac_of_a_learned_context_by_the_classes_that_it_was_learned_on() -> None:
    """Classes of its own stay; of others the literal distances to these, under words and under the context."""
    vectors = 0.5 * torch.randn(4, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    base = (*NAMES[:2], "sofa", "teapot")
    every = (*NAMES, *base[2:])
    places = [every.index(each) for each in base]
    before, after = (
        prompt_state(backbone(), every, prompt).text_features.tolist() for prompt in (Prompt(), Prompt.learned(vectors))
    )
    clf = Classifier(backbone(), views=RECIPE, contexts=[CoopContext(vectors, base)]).set_classes(NAMES)
    changed = set()
    for seed in SEEDS:
        found = clf.compare(image(seed), ["coop", "coop+dac-base"])
        own, c = found["coop+dac-base"], found["coop"].index
        factor = 1.0 if c < 2 else posthoc.dac_factor(before, after, c, places, 5)
        logits = [math.log(p) for p in found["coop"].probabilities]
        assert own.probabilities.tolist() == pytest.approx(posthoc.softmax(logits, 1 / factor), abs=1e-10)
        assert own.index == c
        assert own.extras["temperature"] == pytest.approx(1 / factor, abs=1e-10)
        changed.add(factor != 1.0)
    assert True in changed, "or the test shows nothing"


def test_dac_of_a_context_that_does_not_name_its_classes_is_refused() -> None:
    clf = Classifier(backbone(), "coop+dac-base", views=RECIPE, contexts=[CoopContext(torch.randn(4, 64))])
    with pytest.raises(OtptError, match=r"'coop\+dac-base' needs the classes that the context was learned on, but its"):
        clf.set_classes(NAMES)
