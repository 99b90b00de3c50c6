"""Functions of one's own on every axis, against literal computations and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.methods.own_functions import (
    EXACT,
    NAMES,
    RECIPE,
    backbone,
    classifier,
    confidences,
    image,
    learned,
    oracle,
    pixels,
    plugin,
    predicted,
    tuned_context,
    views,
    with_context,
)
from torch import Tensor

import otpt
from otpt import Classifier, OtptError
from otpt.features import FeatureCache
from otpt.methods import compose

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("registries")]


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_texts_is_the_literal_one(steps: int) -> None:
    @otpt.objective(weight=3.0)
    def closeness(text_features: Tensor) -> Tensor:
        gram = text_features @ text_features.mT
        return (gram.sum(dim=(-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / 12

    def own(_: Tensor, texts: Tensor, __: Tensor) -> Tensor:
        gram = texts @ texts.t()
        return 3.0 * (gram.sum() - gram.trace()) / 12

    context = tuned_context({"entropy": 1.0}, own, steps)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+closeness").override({"steps": steps})
    assert dict(method.objectives) == {"entropy": 1.0, "closeness": 3.0}
    torch.testing.assert_close(predicted(method), expected, **EXACT)
    assert (predicted("tpt") - expected).abs().max() > 1e-5


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_views_is_the_literal_one(steps: int) -> None:
    @otpt.objective
    def my_entropy(logits: Tensor) -> Tensor:
        mean = logits.softmax(dim=-1).mean(dim=-2)
        return -(mean * mean.log()).sum(dim=-1)

    own, ours = (compose(name).override({"steps": steps}) for name in ("my-entropy", "tpt"))
    torch.testing.assert_close(predicted(own), predicted(ours), **EXACT)


def test_an_objective_may_ask_for_the_initial_texts() -> None:
    """At the init its gradient is zero, so the second step shows it."""

    @otpt.objective(weight=40.0)
    def staying(text_features: Tensor, initial_text_features: Tensor) -> Tensor:
        return (text_features - initial_text_features).square().sum(dim=(-2, -1))

    context = tuned_context({"entropy": 1.0}, lambda _, texts, initial: 40.0 * (texts - initial).square().sum(), 2)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+staying").override({"steps": 2})
    torch.testing.assert_close(predicted(method), expected, **EXACT)


def test_an_objective_runs_on_maple(tmp_path: Path) -> None:
    @otpt.objective(weight=50.0, maximise=True)
    def my_dispersion(text_features: Tensor) -> Tensor:
        return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

    contexts = learned("maple", tmp_path)
    own, ours = (predicted(name, 1, *contexts) for name in ("maple+tpt+my-dispersion", "maple+c-tpt"))
    torch.testing.assert_close(own, ours, **EXACT)


def test_kept_gradients_belong_to_the_code_of_an_objective(tmp_path: Path) -> None:
    """Another function of the same name must not get the gradients of the one before."""
    from otpt.plugins import snapshot

    restore = snapshot()
    cache = FeatureCache(tmp_path / "cache")
    found = []
    for number, sign in enumerate(("", "-")):
        path = plugin(tmp_path, f"@otpt.objective\ndef own(logits):\n    return {sign}logits.std(dim=(-2, -1))\n")
        otpt.load_plugin(path)
        found.append(confidences(tmp_path / f"with-{number}", "own", cache))
        assert found[-1] == confidences(tmp_path / f"again-{number}", "own", cache)
        assert found[-1] == confidences(tmp_path / f"without-{number}", "own")
        restore()
    assert found[0] != found[1]


@pytest.mark.parametrize("init", ["", "cocoop+", "maple+"])
def test_an_adaptation_is_the_literal_one(init: str, tmp_path: Path) -> None:
    """Image features centred over the views, as logits: a function of what it asks for, and of nothing else."""
    seen: list[tuple[Tensor, ...]] = []

    @otpt.adaptation
    def centred(features: Tensor, text_features: Tensor, logit_scale: float, zero_shot: Tensor) -> Tensor:
        moved = logit_scale * (features - features.mean(dim=0)) @ text_features.mT
        seen.append((zero_shot, moved))
        return zero_shot + moved

    contexts = learned(init.rstrip("+"), tmp_path)
    found = predicted(f"{init}centred", 1, *contexts)
    zero_shot, moved = seen[0]
    torch.testing.assert_close(found, (zero_shot + moved)[0].softmax(-1), **EXACT)
    assert compose(f"{init}centred").scope == "image"
    if not init:
        literal = oracle()
        texts, scale = literal.text_features(literal.start), backbone().logit_scale
        expected = scale * (2 * views() - views().mean(dim=0))[0] @ texts.t()
        torch.testing.assert_close(found, expected.softmax(-1), **EXACT)


def test_a_stream_carries_its_state_from_image_to_image() -> None:
    @otpt.adaptation
    def mean_so_far(zero_shot: Tensor, state: dict[str, Any]) -> Tensor:
        state["sum"] = state.get("sum", 0) + zero_shot
        state["count"] = state.get("count", 0) + 1
        return state["sum"] / state["count"]

    assert compose("mean-so-far").scope == "stream"
    clf = Classifier(backbone(), "mean-so-far", views=RECIPE).set_classes(NAMES)
    found = [torch.from_numpy(each.probabilities) for each in clf.predict([image(seed) for seed in (1, 2, 3)])]
    literal, total = oracle(), torch.zeros(4, dtype=torch.float64)
    for i, seed in enumerate((1, 2, 3)):
        total = total + literal.logits(clf.encode_views(image(seed))[:1], literal.start)[0]
        torch.testing.assert_close(found[i], (total / (i + 1)).softmax(-1), **EXACT)


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "o-tpt", "tpt+ts"])
def test_a_mean_over_the_views_is_the_literal_one(method: str) -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    literal = oracle()
    weights = {name: 18.0 if name == "orthogonality" else 1.0 for name in compose(method).objectives}
    context = literal.predict(pixels(), weights=weights)["context"] if weights else literal.start
    logits = literal.logits(views(), context) / (1.16 if "ts" in method else 1.0)
    torch.testing.assert_close(predicted(f"{method}+own-mean"), logits.softmax(-1).mean(0), **EXACT)


def test_what_an_aggregation_may_ask_for() -> None:
    seen: dict[str, Tensor] = {}

    @otpt.aggregation
    def curious(
        logits: Tensor, zero_shot: Tensor, features: Tensor, text_features: Tensor, logit_scale: float, power: float = 2
    ) -> Tensor:
        seen.update(logits=logits, zero_shot=zero_shot, features=features, text_features=text_features)
        assert (logit_scale, power) == (backbone().logit_scale, 2)
        return logits.softmax(-1).mean(0)

    predicted("tpt+curious")
    literal = oracle()
    texts = literal.text_features(literal.start)
    torch.testing.assert_close(seen["features"], views(), **EXACT)
    torch.testing.assert_close(seen["text_features"], texts, **EXACT)
    torch.testing.assert_close(seen["zero_shot"], literal.logits(views(), literal.start), rtol=0, atol=1e-8)
    assert (seen["logits"] - seen["zero_shot"]).abs().max() > 1e-3, "these are the adapted ones"


def test_a_run_remembers_the_code_it_was_made_with(tmp_path: Path) -> None:
    from otpt.plugins import snapshot

    restore = snapshot()
    otpt.load_plugin(
        plugin(tmp_path, "ROW = 0\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    confidences(tmp_path / "run", "tpt+one")
    assert confidences(tmp_path / "run", "tpt+one")
    restore()
    otpt.load_plugin(
        plugin(tmp_path, "ROW = 1\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    with pytest.raises(OtptError, match=r"another configuration: .*own_functions\.one is"):
        confidences(tmp_path / "run", "tpt+one")


def test_a_calibration_sees_the_zero_shot_logits() -> None:
    @otpt.calibrator
    def my_sals(logits: Tensor, zero_shot: Tensor) -> Tensor:
        low, high = zero_shot.min(dim=-1, keepdim=True)[0], zero_shot.max(dim=-1, keepdim=True)[0]
        least, most = logits.min(dim=-1, keepdim=True)[0], logits.max(dim=-1, keepdim=True)[0]
        return (logits - least) / (most - least) * (high - low) + low

    torch.testing.assert_close(predicted("o-tpt+my-sals"), predicted("o-tpt+sals"), **EXACT)


@pytest.mark.equality
def test_a_calibration_sees_one_image_at_a_time() -> None:
    """One that mixes what it is given still says the same of an image in any batch."""

    @otpt.calibrator
    def mixing(logits: Tensor) -> Tensor:
        return logits / logits.abs().mean()

    clf = Classifier(backbone(), "zero-shot+mixing", views=RECIPE).set_classes(NAMES)
    batch = [each.probabilities for each in clf.predict([image(1), image(2)])]
    features = torch.stack([clf.encode_views(image(seed)) for seed in (1, 2)])
    by_features = [each["zero-shot+mixing"].probabilities for each in clf.classify_features(features, [clf.method])]
    for seed, one, other in zip((1, 2), batch, by_features, strict=True):
        np.testing.assert_allclose(one, clf.predict(image(seed)).probabilities, rtol=0, atol=1e-6)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.equality
@pytest.mark.parametrize("method", ["tpt", "o-tpt+sals", "cocoop+tpt", "maple+o-tpt", "moved", "tpt+own-mean"])
def test_a_gate_that_is_always_open_or_closed(method: str, tmp_path: Path) -> None:
    """Bit for bit the method without gate, or the same with nothing adapted."""

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        assert zero_shot.shape == (20, 4)
        return True

    @otpt.gate
    def never(features: Tensor, text_features: Tensor) -> Tensor:
        return torch.tensor(False)

    @otpt.adaptation
    def moved(zero_shot: Tensor, features: Tensor) -> Tensor:
        return zero_shot + features[:, :4]

    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    contexts = learned(method.split("+")[0], tmp_path)
    kept = "+".join(part for part in method.split("+") if part not in ("tpt", "o-tpt", "moved")) or "zero-shot"
    kept = f"zero-shot+{kept}" if kept in ("sals", "own-mean") else kept
    names = [method, kept, f"{method}+always", f"{method}+never"]
    methods = [with_context(name, *contexts) for name in names]
    found = classifier().compare(image(1), methods, image_id="p")
    assert np.array_equal(found[f"{method}+always"].probabilities, found[method].probabilities)
    assert np.array_equal(found[f"{method}+never"].probabilities, found[kept].probabilities)
    assert not np.array_equal(found[method].probabilities, found[kept].probabilities)
    assert (found[f"{method}+always"].extras["adapted"], found[f"{method}+never"].extras["adapted"]) == (1.0, 0.0)
    assert found[f"{method}+never"].mean_cosine == found[kept].mean_cosine


def test_a_gate_decides_image_by_image() -> None:
    @otpt.gate
    def views_disagree(zero_shot: Tensor) -> bool:
        return bool(zero_shot[0].argmax() != zero_shot.mean(dim=0).argmax())

    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        called.append(zero_shot)
        return zero_shot + torch.arange(4)

    called: list[Tensor] = []
    clf = classifier()
    answers = [clf.compare(image(seed), ["zero-shot", "tpt", "moved+views-disagree"]) for seed in range(8)]
    disagree = []
    for seed, answer in enumerate(answers):
        literal = oracle()
        logits = literal.logits(clf.encode_views(image(seed)), literal.start)
        disagree.append(int(logits[0].argmax()) != int(logits.sum(dim=0).argmax()))
        expected = answer["moved+views-disagree"].extras["adapted"]
        assert expected == float(disagree[-1])
        same = np.array_equal(answer["moved+views-disagree"].probabilities, answer["zero-shot"].probabilities)
        assert same == (not disagree[-1])
    assert 0 < sum(disagree) < 8, "or the test shows nothing"
    assert len(called) == sum(disagree), "a closed gate spares the work"
