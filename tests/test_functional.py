"""Methods on plain tensors, against the literal ways: loops, torch's AdamW, explicit reflectors."""

from __future__ import annotations

import math

import pytest
import torch
from oracles.methods.accuracy import by_entropy, literal_mean, literal_mta, literal_shift, literal_zero
from oracles.methods.householder import literal_householder
from oracles.models.tiny import tiny_backbone
from torch import Tensor
from torch.nn.functional import normalize

from otpt import Classifier, OtptError, ViewRecipe, functional
from otpt.methods.state import prompt_state

SCALE, VIEWS, CLASSES, WIDTH = 30.0, 20, 5, 12
GENERATOR = torch.Generator().manual_seed(3)
TEXTS = normalize(torch.randn(CLASSES, WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1)
IMAGES = normalize(
    TEXTS[[1, 3]][:, None] + 0.4 * torch.randn(2, VIEWS, WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1
)
WEIGHTS = torch.randn(CLASSES, WIDTH, 6, generator=GENERATOR, dtype=torch.float64)
CONTEXT = torch.randn(2, 3, generator=GENERATOR, dtype=torch.float64)


def encoder(context: Tensor) -> Tensor:
    """Any differentiable function of the context; not of norm one, which is ours to do."""
    return TEXTS + 0.3 * torch.tanh(WEIGHTS @ context.flatten())


def logits(image: Tensor, texts: Tensor = TEXTS) -> Tensor:
    return SCALE * image @ texts.T


def test_prediction_by_methods_without_a_context() -> None:
    found = functional.predict(IMAGES, TEXTS, method="zero-shot", logit_scale=SCALE)
    assert found.shape == (2, CLASSES)
    for image, row in zip(IMAGES, found, strict=True):
        torch.testing.assert_close(row, logits(image)[0].softmax(0), rtol=0, atol=1e-12)
        one = functional.predict(image, 7 * TEXTS, method="zero-shot", logit_scale=SCALE)
        torch.testing.assert_close(one, row, rtol=0, atol=1e-12)
        own = logits(image)
        for method, expected in {
            "zero": torch.tensor(literal_zero(own, SCALE), dtype=torch.float64),
            "mta": literal_mta(image, own, TEXTS, SCALE),
            "mean-feature": literal_mean("mean-feature", image, own, own, TEXTS, SCALE),
            "mean-probability": literal_mean("mean-probability", image, own, own, TEXTS, SCALE),
            "tps": logits(image, literal_shift(image, TEXTS, SCALE, 5e-3, "own"))[0].softmax(0),
        }.items():
            found_one = functional.predict(image[None], TEXTS, method=method, logit_scale=SCALE)[0]
            torch.testing.assert_close(found_one, torch.as_tensor(expected).double(), rtol=0, atol=1e-6, msg=method)


def literal_tuned(image: Tensor, *, weight: float, rate: float = 5e-3) -> Tensor:
    """One step of torch's AdamW on the entropy of the mean of the confident views, and the explicit reflectors."""
    context = CONTEXT.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=rate, weight_decay=0.01)
    texts = normalize(encoder(context), dim=-1)
    rows = logits(image, texts)
    chosen = by_entropy(rows.detach())[: int(VIEWS * 0.1)]
    mean = rows[chosen].softmax(dim=1).mean(dim=0)
    loss = -(mean * mean.log()).sum() + weight * literal_householder(texts)
    loss.backward()
    optimiser.step()
    return context.detach()


@pytest.mark.parametrize(("method", "weight"), [("tpt", 0.0), ("o-tpt", 18.0)])
def test_tuning_of_a_context_through_a_function(method: str, weight: float) -> None:
    tuned = functional.tune(IMAGES, encoder, CONTEXT, method=method, logit_scale=SCALE)
    predicted = functional.predict(IMAGES, encoder, method=method, context=CONTEXT, logit_scale=SCALE)
    assert not tuned.skipped.any()
    for i, image in enumerate(IMAGES):
        context = literal_tuned(image, weight=weight)
        texts = normalize(encoder(context), dim=-1)
        torch.testing.assert_close(tuned.contexts[i], context, rtol=0, atol=1e-9)
        assert tuned.text_features is not None
        torch.testing.assert_close(tuned.text_features[i], texts, rtol=0, atol=1e-9)
        torch.testing.assert_close(tuned.logits[i], logits(image, texts)[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(predicted[i], logits(image, texts)[0].softmax(0), rtol=0, atol=1e-9)


def test_calibration_and_aggregation_alone() -> None:
    own, before = logits(IMAGES[0]), 0.5 * logits(IMAGES[0]) + 1
    found = functional.calibrate(own[0], before[0], method="sals")
    low, high = float(before[0].min()), float(before[0].max())
    scaled = (own[0] - own[0].min()) / (own[0].max() - own[0].min()) * (high - low) + low
    torch.testing.assert_close(found, scaled)
    warm = functional.calibrate(own, before, method="temperature", settings={"temperature": 2.0})
    torch.testing.assert_close(warm, own / 2)
    mean = functional.aggregate(own, method="mean-probability")
    torch.testing.assert_close(mean, own.softmax(dim=1).mean(dim=0))
    votes = functional.aggregate(own, method="zero", logit_scale=SCALE, settings={"vote_ratio": 0.5})
    assert votes.tolist() == pytest.approx(literal_zero(own, SCALE, ratio=0.5))
    direction = functional.aggregate(
        own, method="mean-feature", view_features=IMAGES[0], text_features=TEXTS, logit_scale=SCALE
    )
    torch.testing.assert_close(direction, literal_mean("mean-feature", IMAGES[0], own, own, TEXTS, SCALE).double())


def test_it_gives_the_very_numbers_of_the_classifier() -> None:
    names = ["cat", "dog", "red panda"]
    backbone = tiny_backbone(precision="float64")
    clf = Classifier(backbone, views=ViewRecipe(n_views=16)).set_classes(names)
    views = normalize(torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1)
    text = prompt_state(backbone, names)

    def through_the_tower(context: Tensor) -> Tensor:
        return text.encoder._features(0, context[None])[0]  # with its graph; all classes are one chunk

    for method in ("o-tpt", "tpt+sals", "zero-shot"):
        expected = [each[method].probabilities for each in clf.classify_features(views, [method])]
        found = functional.predict(
            views, through_the_tower, method=method, context=text.init, logit_scale=backbone.logit_scale
        )
        for row, other in zip(found, expected, strict=True):
            assert row.numpy() == pytest.approx(other, abs=1e-9)


def test_what_is_wrong_is_said() -> None:
    cases = [
        (lambda: functional.predict(IMAGES, TEXTS, method="o-tpt"), "tunes a context, but text_features is an array"),
        (lambda: functional.predict(2 * IMAGES, TEXTS), "not have unit norm"),
        (lambda: functional.predict(IMAGES, TEXTS[:, :3]), r"expected \(C, D\), with D = 12"),
        (lambda: functional.predict(IMAGES[0, 0], TEXTS), r"expected \(N, V, D\)"),
        (lambda: functional.predict(IMAGES.long(), TEXTS), "floating-point"),
        (lambda: functional.predict(IMAGES, TEXTS, method="gda"), "examples="),
        (lambda: functional.predict(IMAGES, TEXTS, method="coop"), "makes its own texts"),
        (lambda: functional.predict(IMAGES, encoder, method="tpt"), "given with no context"),
        (lambda: functional.predict(IMAGES, TEXTS, method="promptsmooth"), "needs pixels"),
        (lambda: functional.tune(IMAGES, encoder, CONTEXT, method="zero"), "does not tune a context"),
        (lambda: functional.calibrate(TEXTS, TEXTS[0]), "expected equal shapes"),
        (lambda: functional.calibrate(TEXTS, TEXTS, method="salt"), "'salt'"),
        (lambda: functional.aggregate(TEXTS, method="mta"), "needs view_features="),
        (lambda: functional.aggregate(TEXTS[0]), r"expected \(N, V, C\)"),
    ]
    for call, words in cases:
        with pytest.raises(OtptError, match=words):
            call()
    assert math.isclose(float(functional.predict(IMAGES, TEXTS)[0].sum()), 1)
