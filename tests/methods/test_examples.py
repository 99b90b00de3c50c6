"""Classes by example images: reference values, literal formulas, weights of held-out examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.pocket import pocket
from PIL import Image
from scipy.special import log_softmax, softmax
from torch.nn import functional as F

import otpt
from otpt.errors import OtptError
from otpt.methods.example_scorers import SCORERS, fit_examples, fit_weights, gda, prototypes, tip_adapter
from otpt.methods.examples import Examples

TEXTS = F.normalize(torch.tensor([[1, 0.2, 0.1], [0.3, 1, 0.1]], dtype=torch.float64), dim=-1)
PICTURES = F.normalize(
    torch.tensor(
        [[0.9, 0.4, 0.2], [0.4, 0.9, 0.3], [0.7, 0.6, 0.5], [0.8, 0.3, 0.4], [0.2, 0.8, 0.5], [0.9, 0.5, 0.1]],
        dtype=torch.float64,
    ),
    dim=-1,
)
KEYS, LABELS, QUERY = PICTURES[[0, 3, 1, 4]], torch.tensor([0, 0, 1, 1]), PICTURES[2]


def close(found: Any, *expected: float) -> None:
    np.testing.assert_allclose(np.asarray(found).ravel(), expected, atol=1e-6)


def test_reference_values() -> None:
    """Of the published formulas, on six pictures and two texts with logit scale 10."""
    text_logits = 10 * QUERY @ TEXTS.mT
    cache = tip_adapter(KEYS, LABELS, 2, balanced=False)(QUERY)
    close(cache, 1.404679, 1.035019)
    close(text_logits + cache, 9.499892, 8.853201)
    means = prototypes(KEYS, LABELS, 2)
    close(means.weights, 0.878299, 0.360690, 0.313838, 0.301222, 0.861207, 0.409374)
    close(10 * means(QUERY), 9.421564, 8.888816)
    published = gda(KEYS, LABELS, 2, shrinkage=None)(QUERY) - np.log(2)
    close(published, 53.474616, 46.908267)
    close(text_logits + published, 61.569829, 54.726449)


def test_gda_is_the_likelihood_of_gaussians() -> None:
    """Differences of log densities N(f; μ_c, Σ), Σ the shrunk covariance in units of its mean variance."""
    rng = np.random.default_rng(0)
    x, y, f = rng.normal(size=(30, 5)), np.arange(30) % 3, rng.normal(size=(4, 5))
    found = gda(*map(torch.from_numpy, (x, y)), 3, shrinkage=0.3)(torch.from_numpy(f)).numpy()
    means = np.stack([x[y == c].mean(axis=0) for c in range(3)])
    covariance = sum(np.outer(a, a) for a in x - means[y])
    sigma = 0.7 * covariance / np.trace(covariance) * 5 + 0.3 * np.eye(5)
    expected = [[-(a - m) @ np.linalg.inv(sigma) @ (a - m) / 2 for m in means] for a in f]
    np.testing.assert_allclose(found - found[:, :1], np.array(expected) - np.array(expected)[:, :1], atol=1e-10)


def test_one_image_per_class_is_the_nearest_image() -> None:
    x = F.normalize(torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=-1)
    labels = torch.arange(4)
    for own in SCORERS.values():
        assert torch.equal(own(x, labels, 4)(x).argmax(dim=1), labels)
    fitted = fit_examples("gda", x, labels, 4, logit_scale=100.0)
    assert fitted.weight == pytest.approx(45.0)
    assert np.isnan(fitted.nll)


def test_classes_with_more_images_do_not_win() -> None:
    x = torch.cat([KEYS, KEYS[:1].expand(50, -1)])
    labels = torch.cat([LABELS, torch.zeros(50, dtype=torch.long)])
    balanced = tip_adapter(x, labels, 2)(PICTURES[4])
    assert balanced.argmax() == 1
    assert tip_adapter(x, labels, 2, balanced=False)(PICTURES[4]).argmax() == 0


@pytest.mark.parametrize("terms", [1, 2])
def test_weights_are_those_that_made_the_labels(terms: int) -> None:
    rng = np.random.default_rng(0)
    scores, weights = rng.normal(size=(terms, 6000, 4)), np.array([2.0, 0.7])[:terms]
    p = softmax((weights[:, None, None] * scores).sum(axis=0), axis=1)
    labels = np.array([rng.choice(4, p=row) for row in p])
    nll, found = fit_weights(scores, np.ones((6000, 4), bool), labels, np.ones(terms))
    np.testing.assert_allclose(found, weights, rtol=0.1)
    expected = -log_softmax((found[:, None, None] * scores).sum(axis=0), axis=1)[np.arange(6000), labels].mean()
    assert nll == pytest.approx(expected, abs=1e-3)  # and a prior


def test_unseen_classes_are_no_candidates() -> None:
    scores, seen = np.array([[[1.0, 0.0, 50.0]]]), np.array([[True, True, False]])
    nll, found = fit_weights(scores, seen, np.array([0]), np.ones(1))
    assert nll == pytest.approx(-log_softmax([found[0], 0.0])[0] + np.log(found[0]) ** 2 / 2)


def _clusters(per_class: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features around four directions, noisy along two directions that all classes share."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.eye(16, dtype=torch.float64)
    labels = torch.arange(4).repeat_interleave(per_class)
    noise = 0.15 * torch.randn(len(labels), 16, dtype=torch.float64, generator=generator)
    noise[:, 8:10] *= 8
    return F.normalize(axes[labels] * 0.5 + 1.0 * axes[12] + noise, dim=-1), labels


@pytest.mark.parametrize("init", list(SCORERS))
@pytest.mark.parametrize("shots", [8, 16])
def test_confidence_on_new_images(init: str, shots: int) -> None:
    """Over draws of the examples, the mean confidence is the accuracy."""
    new, labels = _clusters(200, 99)
    gaps, better = [], []
    for seed in range(8):
        x, y = _clusters(shots, seed)
        fitted = fit_examples(init, x, y, 4, logit_scale=100.0)
        p = softmax((fitted.weight * fitted.scorer(new)).numpy(), axis=1)
        right = p.argmax(axis=1) == labels.numpy()
        gaps.append(p.max(axis=1).mean() - right.mean())
        better.append(right.mean() - (prototypes(x, y, 4)(new).argmax(dim=1) == labels).double().mean())
    assert abs(np.mean(gaps)) < 0.08
    if init == "gda" and shots == 16:
        assert np.mean(better) > 0.03


# ---- the classifier -------------------------------------------------------------------------------------------------

NAMES = ["red apple", "pizza", "banana"]


def _images(seed: int) -> dict[str, list[Image.Image]]:
    data = otpt.data.emoji.load_emoji("emoji/food", seed=seed, compositions=3)
    classes = len(data.class_names)
    return {name: [data.image(data.class_names.index(name) + k * classes) for k in range(3)] for name in NAMES}


@pytest.mark.parametrize("method", [None, "prototypes", "tip-adapter+mean-logit"])
@pytest.mark.parametrize("with_texts", [False, True])
def test_a_classifier_by_examples(method: str | None, with_texts: bool) -> None:
    clf = otpt.Classifier(pocket(), method, views=4)
    clf.set_classes(NAMES if with_texts else None, examples=_images(1))
    assert clf.class_names == tuple(NAMES)
    assert clf.method.name == (method or "gda")
    images = _images(2)
    for name in NAMES:
        prediction = clf.predict(images[name][0])
        assert prediction.label == name
        assert prediction.probabilities.sum() == pytest.approx(1)
    clean = clf.predict(images["pizza"][0], method=clf.method.name.partition("+")[0])
    state: Any = clf._predictor(clf.task, (clf.method,)).groups[0].state
    feature = clf.embed(images["pizza"][0])
    logits = state.fitted.weight * state.fitted.scorer(feature[None])
    if with_texts:
        texts = clf.backbone.logit_scale * feature[None] @ clf.text_features.mT
        logits = logits + state.fitted.text_weight * texts
    np.testing.assert_allclose(clean.probabilities, logits.softmax(dim=-1)[0], atol=1e-5)


def test_from_a_folder_and_back_to_texts(tmp_path: Path) -> None:
    for name, images in _images(1).items():
        for i, image in enumerate(images):
            (tmp_path / name).mkdir(exist_ok=True)
            image.save(tmp_path / name / f"{i}.png")
    clf = otpt.Classifier(pocket()).set_classes(examples=tmp_path)
    assert set(clf.class_names) == set(NAMES)
    assert clf.predict(_images(2)["pizza"][0]).label == "pizza"
    clf.set_classes(NAMES)
    assert clf.method.name == "confident-half"


def test_one_image_is_said_and_none_is_refused() -> None:
    image = Image.new("RGB", (8, 8))
    with pytest.warns(UserWarning, match="'ours'"):
        otpt.Classifier(pocket()).set_classes(examples={"ours": [image], "theirs": [image, image]})
    with pytest.raises(OtptError, match="theirs"):
        otpt.Classifier(pocket()).set_classes(examples={"ours": [image, image], "theirs": []})


@pytest.mark.parametrize(
    ("given", "classes", "named"),
    [
        ({"ours": ["a.png"], "theirs": []}, ("ours", "theirs"), "theirs"),
        ({"ours": ["a.png"], "cat": ["b.png"]}, ("ours",), "cat"),
        ({"ours": "a.png"}, (), "a.png"),
        ({}, (), "{}"),
        (["a.png"], (), "a.png"),
    ],
)
def test_bad_examples(given: Any, classes: tuple[str, ...], named: str) -> None:
    with pytest.raises(OtptError, match=named):
        Examples.read(given, classes)


def test_what_examples_cannot_do() -> None:
    images = _images(1)
    with pytest.raises(OtptError, match="gda"):
        otpt.Classifier(pocket(), "gda").set_classes(NAMES)
    with pytest.raises(OtptError, match="o-tpt"):
        otpt.Classifier(pocket(), "o-tpt").set_classes(NAMES, examples=images)
    with pytest.raises(OtptError, match=r"missing\.png"):
        otpt.Classifier(pocket()).set_classes(examples={"ours": ["missing.png"] * 2, "theirs": images["pizza"]})
    with pytest.raises(OtptError, match="multi_label"):
        otpt.Classifier(pocket(), multi_label=True).set_classes(NAMES, examples=images)
