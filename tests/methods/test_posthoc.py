"""CoTS, CoR, DAC, USE, the mixtures and the gates: reference values, whole methods against the literal way."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.methods import field, posthoc
from oracles.methods.maple import maple_state
from oracles.methods.posthoc_bench import (
    NAMES,
    RECIPE,
    SEEDS,
    SOME_DISAGREE,
    answers,
    backbone,
    classifier,
    image,
    literal,
    oracle,
)
from torch import Tensor

import otpt
from otpt import Classifier, OtptError
from otpt.methods import compose, get_method
from otpt.methods.aggregations import se, weak_strong
from otpt.methods.gates import agreement, cas, strong_agreement
from otpt.methods.state import prompt_state
from otpt.prompts import Prompt
from otpt.prompts.learned import CocoopContext, CoopContext, read_learned

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


@pytest.mark.parametrize(
    ("base", "part"),
    [*((base, part) for base in ("zero-shot", "tpt") for part in AFTERWARDS), ("o-tpt", "e-cots"), ("o-tpt", "dac")],
)
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
    clf = Classifier(backbone(), views=RECIPE).set_classes(NAMES)
    name = f"{init}+tpt+e-cots"
    methods = [get_method(each).override({"context": context}) for each in (f"{init}+tpt+noting", name)]
    found = clf.compare(image(2), methods)[name]
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
    predictor = clf._predictor(None, methods)
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


def test_the_reference_values_of_the_gates() -> None:
    logits = field.logits()
    assert posthoc.confident(logits.tolist()) == [33, 29, 21, 5, 61, 56]
    closed, extras = cas(logits)
    assert not closed, "0.98 is above the threshold"
    assert extras["cas"] == pytest.approx(0.983064030508, abs=1e-12)
    assert extras["agreeing_views"] == 2
    assert cas(logits, cas_threshold=0.99)[0]
    assert agreement(logits) == strong_agreement(logits) == (True, {"agreeing_views": 2.0})


@pytest.mark.parametrize("seed", range(12))
def test_gates_are_the_literal_ones(seed: int) -> None:
    logits = 2 * torch.randn(41, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits[:, seed % 4] += seed / 3  # from views that disagree to views that agree
    rows = logits.tolist()
    score, agreeing = posthoc.cas(rows)
    found, extras = cas(logits)
    assert extras == {"cas": pytest.approx(score, abs=1e-12), "agreeing_views": agreeing}
    assert found == (score < 0.5)
    assert agreement(logits) == (agreeing < 4, {"agreeing_views": agreeing})
    assert cas(logits, cas_threshold=1.0)[0] == (agreeing < 4), "1 exactly where all agree"
    same = sum(posthoc.label(rows[i]) == posthoc.label(rows[0]) for i in posthoc.strong(rows))
    assert strong_agreement(logits) == (same < 4, {"agreeing_views": same})


def test_the_fraction_of_views_that_a_gate_asks() -> None:
    logits = torch.tensor([[3.0, 0.0], [9.0, 0.0], [8.0, 0.0], [0.0, 7.0]])
    assert not agreement(logits, gate_ratio=0.5)[0]
    assert agreement(logits, gate_ratio=0.75)[0]
    assert not strong_agreement(logits, strong_ratio=0.7)[0]
    assert strong_agreement(logits, strong_ratio=1.0)[0]


def test_views_that_share_nothing_with_the_clean_one_have_no_score() -> None:
    logits = torch.tensor([[1000.0, 0.0, 900.0], [0.0, 2000.0, 0.0], [0.0, 2000.0, 0.0]])
    assert cas(logits, gate_ratio=0.7) == (True, {"cas": 0.0, "agreeing_views": 0.0})


def test_a_gated_image_keeps_the_zero_shot_confidence_under_cots() -> None:
    """Where nothing was adapted the temperature is 1 exactly."""
    kept = 0
    for seed in SOME_DISAGREE:
        found = answers(seed, ("tpt+agreement+e-cots", "tpt+agreement+cots", "zero-shot", "zero-shot+weak-strong"))
        closed = found["tpt+agreement+cots"].extras["adapted"] == 0
        kept += closed
        assert (found["tpt+agreement+cots"].extras["temperature"] == 1.0) == closed
        for gated, plain in (("cots", "zero-shot"), ("e-cots", "zero-shot+weak-strong")):
            same = np.allclose(
                found[f"tpt+agreement+{gated}"].probabilities, found[plain].probabilities, rtol=0, atol=1e-12
            )
            assert same == closed
    assert 0 < kept < len(SOME_DISAGREE)


def test_the_reference_values_of_the_mixtures() -> None:
    logits = field.logits()
    found, extras = weak_strong(logits.softmax(-1), logits, posthoc.mean_cosine(field.texts()))
    expected = [0.113805835126, 0.760112652910, 0.034065603117, 0.059620590873, 0.032395317974]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert extras["alpha"] == pytest.approx(0.818944724618, abs=1e-12)
    found, extras = se(logits.softmax(-1), logits)
    expected = [0.091064778996, 0.661679047179, 0.064925252825, 0.119542474055, 0.062788446945]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert extras["alpha"] == pytest.approx(0.636507936508, abs=1e-12)
    assert se(logits.softmax(-1), logits, se_power=2.0)[1]["alpha"] == pytest.approx(0.546586041824, abs=1e-12)


def test_the_reference_value_of_e_cots_has_the_strong_views_before_calibration() -> None:
    adapted = field.adapted_logits()
    scaled = adapted / 1.460610765
    assert posthoc.strong(scaled.tolist()) != posthoc.strong(adapted.tolist()), "the temperature changes their order"
    found, extras = weak_strong(scaled.softmax(-1), adapted, posthoc.mean_cosine(field.second_texts()))
    expected = [0.069045497186, 0.790017896496, 0.037846488912, 0.061664817328, 0.041425300078]
    assert found.tolist() == pytest.approx(expected, abs=1e-11)
    assert extras["alpha"] == pytest.approx(0.806550806948, abs=1e-12)


def test_settings_change_what_they_say() -> None:
    quadratic = compose("use").override({"se-power": 2})
    found = classifier().compare(image(0), [quadratic], image_id="0")["use"]
    rows = literal(0, "zero-shot")[2]
    assert found.extras["alpha"] == pytest.approx(posthoc.se_weight(rows, quadratic=True), abs=1e-12)
    assert dict(quadratic.tuning("shift").settings) == {"se_power": 2.0}, (
        "the step and the mixture have the same weight"
    )
    wide = compose("tpt+e-cots").override({"strong-ratio": 1.0})
    found = classifier().compare(image(0), [wide], image_id="0")["tpt+e-cots"]
    _, adapted, zero_shot = literal(0, "tpt")
    assert found.extras["temperature"] == pytest.approx(posthoc.matching(adapted[1:], zero_shot[1:]), rel=1e-9)


def test_use_is_the_literal_one() -> None:
    adapted = []
    for seed in SOME_DISAGREE:
        _, tuned, zero_shot = literal(seed, "use")
        chosen, alpha = posthoc.strong(zero_shot), posthoc.se_weight(zero_shot)
        agree = all(posthoc.label(zero_shot[i]) == posthoc.label(zero_shot[0]) for i in chosen)
        found = answers(seed, ("use", "zero-shot"))
        p = posthoc.mixture(zero_shot if agree else tuned, chosen, alpha)
        assert found["use"].probabilities.tolist() == pytest.approx(p, abs=1e-10)
        assert found["use"].extras["adapted"] == (not agree)
        assert found["use"].extras["alpha"] == pytest.approx(alpha, abs=1e-12)
        if agree:
            assert found["use"].index == found["zero-shot"].index
        adapted.append(not agree)
    assert 0 < sum(adapted) < len(adapted), "or the test shows nothing"


def test_dac_of_a_learned_context_by_the_classes_that_it_was_learned_on() -> None:
    """Classes of its own stay; of others the literal distances to these, under words and under the context."""
    vectors = 0.5 * torch.randn(4, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    base = (*NAMES[:2], "sofa", "teapot")
    every = (*NAMES, *base[2:])
    places = [every.index(each) for each in base]
    before, after = (
        prompt_state(backbone(), every, prompt).text_features.tolist() for prompt in (Prompt(), Prompt.learned(vectors))
    )
    clf = Classifier(backbone(), views=RECIPE).set_classes(NAMES)
    context = {"context": CoopContext(vectors, base)}
    methods = [get_method(name).override(context) for name in ("coop", "coop+dac-base")]
    changed = set()
    for seed in SEEDS:
        found = clf.compare(image(seed), methods)
        own, c = found["coop+dac-base"], found["coop"].index
        factor = 1.0 if c < 2 else posthoc.dac_factor(before, after, c, places, 5)
        logits = [math.log(p) for p in found["coop"].probabilities]
        assert own.probabilities.tolist() == pytest.approx(posthoc.softmax(logits, 1 / factor), abs=1e-10)
        assert own.index == c
        assert own.extras["temperature"] == pytest.approx(1 / factor, abs=1e-10)
        changed.add(factor != 1.0)
    assert True in changed, "or the test shows nothing"


def test_dac_of_a_context_that_does_not_name_its_classes_is_refused() -> None:
    method = get_method("coop+dac-base").override({"context": CoopContext(torch.randn(4, 64))})
    clf = Classifier(backbone(), method, views=RECIPE)
    with pytest.raises(OtptError, match=r"'coop\+dac-base' needs the classes that the context was learned on, but its"):
        clf.set_classes(NAMES)
