"""CoTS, CoR, DAC and the mixtures on whole methods, against the literal way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.methods import posthoc
from oracles.methods.maple import maple_state
from oracles.methods.posthoc_bench import (
    NAMES,
    RECIPE,
    SEEDS,
    SOME_DISAGREE,
    WEIGHTS,
    answers,
    backbone,
    classifier,
    image,
    literal,
    oracle,
)
from torch import Tensor

import otpt
from otpt import Classifier
from otpt.methods import compose
from otpt.prompts.learned import CocoopContext, read_learned

pytestmark = pytest.mark.slow

AFTERWARDS = ("cots", "e-cots", "weak-strong", "se", "cor", "dac")


def expected(seed: int, base: str, part: str) -> tuple[list[float], dict[str, float]]:
    texts, adapted, zero_shot = literal(seed, base)
    chosen = posthoc.strong(adapted)
    cosine = posthoc.mean_cosine(texts)
    temperature = posthoc.cots(adapted, zero_shot) if base != "zero-shot" else 1.0
    if part == "cots":
        return posthoc.softmax(adapted[0], temperature), {"temperature": temperature}
    if part == "e-cots":
        p = posthoc.mixture(adapted, chosen, cosine, temperature)
        return p, {"temperature": temperature, "alpha": cosine}
    if part == "weak-strong":
        return posthoc.mixture(adapted, chosen, cosine), {"alpha": cosine}
    if part == "se":
        alpha = posthoc.se_weight(zero_shot)
        return posthoc.mixture(adapted, posthoc.strong(zero_shot), alpha), {"alpha": alpha}
    if part == "cor":
        temperature = posthoc.matching(adapted[:1], zero_shot[:1]) if base != "zero-shot" else 1.0
        return posthoc.softmax(adapted[0], temperature), {}
    c = posthoc.label(adapted[0])
    start = oracle().text_features(oracle().start).tolist()
    factor = posthoc.dac_factor(start, texts.tolist(), c, [b for b in range(len(NAMES)) if b != c], 5)
    return posthoc.softmax(adapted[0], 1 / factor), {"temperature": 1 / factor}


@pytest.mark.parametrize("part", AFTERWARDS)
@pytest.mark.parametrize("base", WEIGHTS)
def test_methods_are_the_literal_ones(base: str, part: str) -> None:
    names = (base, *(f"{base}+{each}" for each in AFTERWARDS))
    for seed in SEEDS:
        found = answers(seed, names)[f"{base}+{part}"]
        p, extras = expected(seed, base, part)
        assert found.probabilities.tolist() == pytest.approx(p, abs=1e-10)
        assert {name: found.extras[name] for name in extras} == pytest.approx(extras, rel=1e-9)
        if part in ("cots", "cor", "dac"):
            assert found.index == answers(seed, names)[base].index, "labels stay"
    changed = [
        answers(seed, names)[f"{base}+{part}"].confidence - answers(seed, names)[base].confidence for seed in SEEDS
    ]
    unchanged = base == "zero-shot" and part in ("cots", "cor", "dac")
    assert max(map(abs, changed)) < 1e-12 if unchanged else min(map(abs, changed)) > 1e-8


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("init", ["cocoop", "maple"])
def test_learned_prompts(init: str, tmp_path: Path) -> None:
    """The zero-shot logits are those of the learned prompts, and the texts the image's own."""
    seen: list[tuple[Tensor, ...]] = []

    @otpt.aggregation
    def noting(logits: Tensor, zero_shot: Tensor, adapted_text_features: Tensor) -> Tensor:
        seen.append((logits, zero_shot, adapted_text_features))
        return logits[0].softmax(0)

    if init == "maple":
        torch.save({"state_dict": maple_state("vit", 2)}, tmp_path / "maple.pt")
        context = read_learned(tmp_path / "maple.pt")
    else:
        shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
        generator = torch.Generator().manual_seed(0)
        context = CocoopContext(*(0.5 * torch.randn(*shape, generator=generator) for shape in shapes))
    clf = Classifier(backbone(), views=RECIPE, contexts=[context]).set_classes(NAMES)
    name = f"{init}+tpt+e-cots"
    found = clf.compare(image(2), [f"{init}+tpt+noting", name])[name]
    adapted, zero_shot = (each.tolist() for each in seen[0][:2])
    temperature, cosine = posthoc.cots(adapted, zero_shot), posthoc.mean_cosine(seen[0][2])
    expected = posthoc.mixture(adapted, posthoc.strong(adapted), cosine, temperature)
    assert found.probabilities.tolist() == pytest.approx(expected, abs=1e-10)
    assert abs(temperature - 1) > 1e-3


METHODS = (
    "tpt+cots",
    "o-tpt+e-cots",
    "zero-shot+weak-strong",
    "tpt+se",
    "tpt+cor",
    "o-tpt+dac",
    "use",
    "tpt+cas+e-cots",
)


@pytest.mark.equality
def test_an_image_gets_the_same_alone_and_in_a_batch() -> None:
    """Also in one pass of several images, as on a GPU."""
    clf = classifier("float32")
    features = torch.stack([clf.encode_views(image(seed), image_id=str(seed)) for seed in SOME_DISAGREE[1:5]])
    together = clf.classify_features(features, METHODS)
    methods = tuple(compose(name) for name in METHODS)
    predictor = clf._predictor(methods)
    predictor.one_pass = True
    try:
        in_one_pass = clf.classify_features(features, METHODS)
    finally:
        predictor.one_pass = False
    for i in range(4):
        alone = clf.classify_features(features[i : i + 1], METHODS)[0]
        for name in METHODS:
            for other in (together[i][name], in_one_pass[i][name]):
                assert np.array_equal(alone[name].probabilities, other.probabilities), name
                assert dict(alone[name].extras) == dict(other.extras), name
