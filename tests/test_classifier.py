"""From an image to a prediction: the whole chain against the literal way, and what it must not depend on."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
import torch
from oracles.methods.augmix import literal_views
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from PIL import Image

import otpt
from otpt import Classifier, OtptError, ViewRecipe
from otpt.methods import DEFAULT_METHOD, KEPT_INIT, published_methods

NAMES = ["cat", "dog", "red panda", "2012 BMW M3 coupe", "sea"]
RECIPE = ViewRecipe(n_views=24)


def image(seed: int, size: tuple[int, int] = (90, 70)) -> Image.Image:
    """Blobs of colour."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@cache
def classifier(kind: str = "vit", precision: str = "float32") -> Classifier:
    return Classifier(tiny_backbone(kind, precision), views=RECIPE).set_classes(NAMES)


@pytest.mark.parametrize("kind", ["vit", pytest.param("resnet", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_every_method_from_image_to_probabilities(kind: str, precision: str, tolerance: float) -> None:
    """Op-by-op AugMix, 77 tokens, explicit reflectors, torch's AdamW; against views, engine and calibration."""
    clf = classifier(kind, precision)
    dtype = clf.backbone.dtype
    oracle = LiteralTuner(tiny_clip(kind, dtype=dtype), tokenizer(), NAMES)
    for seed in (1, 2) if precision == "float64" else (1,):
        methods = {n: m for n, m in published_methods().items() if (m.init, m.adapt) == ("words", "context")}
        found = clf.compare(image(seed), list(methods), image_id=f"p{seed}")
        pixels = literal_views(
            image(seed), RECIPE, clf.backbone.preprocessing, seed=0, image_id=f"p{seed}", dtype=dtype
        )
        for name, method in methods.items():
            config = method.tuning("fine-grained")
            fixed = {"vit": 1.16, "resnet": 1.15}[kind] if method.calibrate == "temperature" else 1.0
            expected = oracle.predict(
                torch.from_numpy(pixels),
                weights=dict(config.weights) if config else {},
                calibration=method.calibrate,
                temperature=fixed,
            )["probabilities"]
            difference = np.abs(found[name].probabilities - expected.double().numpy()).max()
            assert difference < tolerance, name


def test_prediction_is_what_its_probabilities_say() -> None:
    found = classifier().predict(image(3))
    assert found.method == DEFAULT_METHOD
    assert found.probabilities.sum() == pytest.approx(1)
    assert found.index == int(found.probabilities.argmax())
    assert found.label == NAMES[found.index]
    assert found.confidence == found.probabilities.max()
    assert found.top(2)[0] == (found.label, found.confidence)
    assert len(found.top(99)) == len(NAMES)
    assert found.flags == ()
    assert -1 < found.mean_cosine < 1


@pytest.mark.equality
@pytest.mark.parametrize("method", ["o-tpt", "zero-shot"])
def test_order_batch_and_workers_do_not_matter(method: str) -> None:
    clf = classifier()
    images = [image(seed, size) for seed, size in [(1, (90, 70)), (2, (33, 200)), (3, (64, 64)), (4, (20, 20))]]
    alone = [clf.compare([each], [method])[0][method].probabilities for each in images]
    for each, expected in zip(images, alone, strict=True):  # a single image may be encoded in another chunk
        assert clf.predict(each, method=method).probabilities == pytest.approx(expected, abs=1e-6)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 0]):
        for workers in (0, 1, 3):
            answers = list(clf.stream([images[i] for i in order], [method], workers=workers))
            for i, answer in zip(order, answers, strict=True):
                assert not isinstance(answer, OtptError)
                assert np.array_equal(answer[method].probabilities, alone[i])


@pytest.mark.equality
def test_seed_and_content_decide_the_views() -> None:
    clf = classifier()
    other = Classifier(clf.backbone, views=RECIPE, seed=1).set_classes(NAMES)
    same = [clf.predict(image(1)).probabilities for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(other.predict(image(1)).probabilities, same[0])
    buffer = io.BytesIO()
    image(1).save(buffer, "PNG")
    assert np.array_equal(
        clf.predict(buffer.getvalue(), image_id="x").probabilities,
        clf.predict(image(1), image_id="x").probabilities,
    )


@pytest.mark.equality
def test_methods_together_equal_each_alone() -> None:
    clf = classifier()
    names = ["zero-shot", "tpt", "o-tpt", "tpt+sals", "c-tpt+zs"]
    (together,) = clf.compare([image(5)], names)
    for name in names:
        (alone,) = clf.compare([image(5)], [name])
        assert np.array_equal(together[name].probabilities, alone[name].probabilities)


def test_another_method_for_one_call() -> None:
    clf = classifier()
    (expected,) = clf.compare([image(5)], ["tpt", "zero-shot"])
    assert expected["tpt"] != expected["zero-shot"]
    for name in expected:
        assert clf.predict([image(5)], method=name) == clf([image(5)], method=name) == [expected[name]]
        assert clf.predict(image(5), method=name).method == clf(image(5), method=name).method == name
    assert clf.predict(image(5)).method == clf.method.name
    with pytest.raises(OtptError, match="Did you mean: tpt"):
        clf(image(5), method="ttp")


def test_official_precision_rounds_to_float16() -> None:
    clf = classifier()
    official = Classifier(clf.backbone, views=RECIPE, official_precision=True).set_classes(NAMES)
    plain, rounded = (each.compare(image(1), ["o-tpt"])["o-tpt"].probabilities for each in (clf, official))
    assert np.array_equal(rounded, rounded.astype(np.float16).astype(np.float64))
    assert not np.array_equal(plain, rounded)
    assert rounded == pytest.approx(plain, rel=0.05, abs=1e-3)
    kept = official.compare(image(1), ["tpt+sals"])["tpt+sals"].probabilities
    assert not np.array_equal(kept, kept.astype(np.float16).astype(np.float64)), "SaLS rounds the logits only"


def test_a_gradient_that_is_not_finite_is_flagged() -> None:
    clf = classifier()
    views = clf.encode_views(image(1))
    broken = torch.stack([views, torch.where(torch.arange(len(views))[:, None] == 0, views, 3e38)])  # overflows
    mine = otpt.Method("mine", {"entropy": 1.0}, selection_ratio=1.0)
    good, bad = (answer["mine"] for answer in clf.classify_features(broken, [mine]))
    assert (good.flags, bad.flags) == ((), (KEPT_INIT,))
    start = clf.compare(image(1), ["zero-shot"])["zero-shot"].probabilities
    assert bad.probabilities == pytest.approx(start, abs=1e-5)


@pytest.mark.slow
def test_fitting_a_temperature() -> None:
    clf = Classifier(tiny_backbone("vit"), "zero-shot").set_classes(NAMES)
    images = [image(seed) for seed in range(20)]
    before = clf.predict(images)
    # Labels that are right for three of four: the fitted temperature brings the confidence up to what is right.
    labels = [p.label if i % 4 else NAMES[(p.index + 1) % len(NAMES)] for i, p in enumerate(before)]
    found = clf.calibrate(images, labels, maps=["temperature"])
    after = clf.predict(images)
    assert found.map.kind == "temperature"
    assert [p.index for p in after] == [p.index for p in before]

    def loss(predictions: list[otpt.Prediction]) -> float:
        return -sum(np.log(p.probabilities[NAMES.index(y)]) for p, y in zip(predictions, labels, strict=True))

    assert loss(after) < loss(before)
    with pytest.raises(OtptError, match="one label per image"):
        clf.calibrate(images, labels[:3])
    with pytest.raises(OtptError, match=r"Unknown label 'ct'\. Did you mean: cat"):
        clf.calibrate(images, ["ct"] * 20)
    with pytest.raises(OtptError, match="not a class; expected 0 to 4"):
        clf.calibrate(images, [9] * 20)
    with pytest.raises(OtptError, match="Got 6 labelled images; expected at least"):
        clf.calibrate(images[:6], labels[:6])


def test_what_a_calibration_refuses_changes_nothing() -> None:
    clf = Classifier(tiny_backbone("vit"), "zero-shot").set_classes(NAMES[:3])
    images = [image(seed) for seed in range(20)]
    clf.calibrate(images, [seed % 3 for seed in range(20)], maps=["temperature"])
    before = clf.predict(image(1))
    with pytest.raises(OtptError, match="for these 3 classes with other names: 'cat', not 'house'"):
        clf.set_classes(["house", "tree", "car"])
    assert clf.predict(image(1)) == before
    other = Classifier(clf.backbone, "zero-shot").set_classes(["house", "tree", "car"])
    plain = other.predict(image(1))
    with pytest.raises(OtptError, match="for these 3 classes with other names: 'cat', not 'house'"):
        other.use_calibrations(list(clf._calibrations.values()))
    assert other.predict(image(1)) == plain


def test_what_is_missing_is_said_before_anything_is_computed() -> None:
    backbone = tiny_backbone("vit")
    with pytest.raises(OtptError, match="No classes are set"):
        Classifier(backbone).predict(image(1))
    clf = classifier()
    with pytest.raises(OtptError, match="No methods were given; expected at least one"):
        clf.compare(image(1), [])
    with pytest.raises(OtptError, match=r"expected a list; for a single one, pass \['cal.json'\]"):
        clf.use_calibrations("cal.json")
    views = clf.encode_views(image(1))
    for wrong in (views, views[None, :, :-1]):
        with pytest.raises(OtptError, match=r"features have shape .*; expected \(B, V, \d+\).* pass features\[None\]"):
            clf.classify_features(wrong, ["zero-shot"])
    with pytest.raises(OtptError, match="medical"):
        Classifier(backbone, family="medical")
    with pytest.raises(OtptError, match="Unknown method"):
        otpt.load("a model that does not exist", method="o-tpp")
