"""Several labels per image: the grid of crops, its odds, Platt scaling, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.pocket import pocket
from PIL import Image
from scipy.special import expit

import otpt
from otpt.calibration import Calibrated, fit_label_calibration
from otpt.calibration.maps import OF_LABELS, choose_label_map, fit_map
from otpt.data.own import read_label_sets
from otpt.errors import OtptError
from otpt.methods.multi_label import GRID, grid_boxes, grid_views, log_odds
from otpt.metrics.multi_label import mean_average_precision, multi_label_ece, multi_label_f1, multi_label_nll
from otpt.prompts.tokens import fixed_tokens
from otpt.rejection import Rejector


@pytest.mark.parametrize(("width", "height"), [(256, 256), (640, 480), (3, 500), (1, 1)])
def test_the_grid_covers_the_image(width: int, height: int) -> None:
    boxes = grid_boxes(width, height)
    assert len(boxes) == sum(n * n for n, _ in GRID)
    for part in (boxes[:4], boxes[4:]):
        seen = np.zeros((height, width), bool)
        for box in part:
            assert box.top + box.height <= height
            assert box.left + box.width <= width
            seen[box.top : box.top + box.height, box.left : box.left + box.width] = True
        assert seen.all()


def test_odds_are_those_of_the_best_crop_divided_by_their_number() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0]], dtype=torch.float64)
    best = logits.softmax(dim=-1).amax(dim=0).numpy()
    np.testing.assert_allclose(np.exp(log_odds(logits).numpy()), best / (1 - best) / 2, rtol=1e-12)
    np.testing.assert_array_equal(log_odds(logits, sigmoid=True), logits[0])
    extreme = log_odds(torch.tensor([[1000.0, 0.0]]))
    assert bool(extreme.isfinite().all())


@pytest.mark.parametrize("kind", list(OF_LABELS))
def test_platt_finds_the_numbers_that_made_the_labels(kind: str) -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 3, (4000, 3))
    biases = np.array([-1.0]) if kind == "platt" else np.array([-2.0, -1.0, 0.5])
    present = rng.random(odds.shape) < expit(0.7 * odds + biases)
    found = fit_map(kind, expit(odds), present)
    assert found.parameters["slope"] == pytest.approx(0.7, abs=0.03)
    assert found.parameters["biases"] == pytest.approx(biases.tolist(), abs=0.15)
    after = found(expit(odds))
    np.testing.assert_allclose(
        after, expit(found.parameters["slope"] * odds + np.array(found.parameters["biases"])), atol=1e-5
    )
    if kind == "platt":  # maximum likelihood: the mean probability is the frequency
        assert after.mean() == pytest.approx(present.mean(), abs=1e-3)
    assert choose_label_map(expit(odds), present).map.kind == kind


def test_metrics_on_a_small_example() -> None:
    p, y = [[0.9, 0.2], [0.6, 0.7], [0.3, 0.1]], [[1, 0], [0, 1], [1, 0]]
    assert mean_average_precision(p, y) == pytest.approx((5 / 6 + 1) / 2)
    assert multi_label_f1(p, y) == pytest.approx(2 / 3)
    assert multi_label_f1(p, y, average="macro") == pytest.approx((0.5 + 1) / 2)
    assert multi_label_ece(p, y, n_bins=2) == pytest.approx((abs(0.3 + 0.2 + 0.1 - 1) + abs(0.9 + 0.6 + 0.7 - 2)) / 6)
    assert multi_label_nll([[0.5]], [[1]]) == pytest.approx(np.log(2))


def test_average_precision_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    p, y = rng.random((60, 4)).round(1), rng.random((60, 4)) < 0.3  # with ties
    expected = np.mean([sklearn.average_precision_score(y[:, c], p[:, c]) for c in range(4)])
    assert mean_average_precision(p, y) == pytest.approx(expected, abs=1e-12)


def test_easy_negatives_can_be_left_out() -> None:
    p, y = [[0.001] * 98 + [0.5, 0.5]], [[0] * 98 + [1, 1]]
    assert multi_label_ece(p, y, easy_negatives=False) == pytest.approx(0.5)
    assert multi_label_ece(p, y) == pytest.approx((98 * 0.001 + 1) / 100)


def test_bad_input() -> None:
    with pytest.raises(OtptError, match=r"\(2,\)"):
        mean_average_precision([0.1, 0.2], [0, 1])
    with pytest.raises(OtptError, match=r"1\.5"):
        multi_label_ece([[1.5]], [[1]])
    with pytest.raises(OtptError, match="horse"):
        read_label_sets([["cat"], ["horse"]], ["cat", "dog"])
    with pytest.raises(OtptError, match="'cat'"):
        read_label_sets(["cat"], ["cat", "dog"])
    with pytest.raises(OtptError, match="absent"):
        fit_label_calibration(np.zeros((30, 2)), np.zeros((30, 2)), {"classes": ["cat", "dog"]})
    with pytest.raises(OtptError, match="3 labelled"):
        fit_label_calibration(np.zeros((3, 2)), np.eye(3, 2), {"classes": ["cat", "dog"]})


def _canvas(names: list[str]) -> Image.Image:
    data = otpt.data.emoji.load_emoji("emoji/food")
    canvas = Image.new("RGB", (256, 256), (240, 240, 235))
    for place, name in zip([(0, 0), (128, 0), (0, 128), (128, 128)], names, strict=False):
        canvas.paste(data.image(data.class_names.index(name)), place)
    return canvas


LABELS = ["red apple", "pizza", "banana", "hamburger"]
CANVASES = [["red apple", "pizza"], ["banana"], ["hamburger", "banana", "red apple"], ["pizza", "hamburger"]]


def test_several_labels_of_an_image() -> None:
    clf = otpt.Classifier(pocket(), multi_label=True).set_classes(LABELS)
    for present in CANVASES:
        prediction = clf.predict(_canvas(present))
        assert {name for name, _ in prediction.top(len(present))} == set(present)
        assert prediction.labels_above(0.0) == [name for name, _ in prediction.top(4)]
        pixels = grid_views(_canvas(present), clf.backbone.preprocessing)
        logits = clf.backbone.encode_pixels(pixels, chunk=clf.backbone.chunk) @ clf.text_features.mT
        expected = expit(log_odds(clf.backbone.logit_scale * logits).numpy())
        np.testing.assert_allclose(prediction.probabilities, expected, atol=1e-6)


@pytest.mark.slow
def test_calibrated_on_labelled_images(tmp_path: Path) -> None:
    clf = otpt.Classifier(pocket(), multi_label=True).set_classes(LABELS)
    before = clf.predict(_canvas(CANVASES[0])).probabilities
    fitted = clf.calibrate([_canvas(each) for each in CANVASES * 5], CANVASES * 5)
    after = clf.predict(_canvas(CANVASES[0]))
    np.testing.assert_allclose(after.probabilities, fitted.map(before), atol=1e-6)
    assert after.extras["uncalibrated_confidence"] == pytest.approx(before.max(), abs=1e-6)
    assert fitted.reliability["after"]["label_nll"][0] < fitted.reliability["before"]["label_nll"][0]
    fitted.write(tmp_path / "labels.json")
    again = otpt.Classifier(pocket(), multi_label=True, calibration=tmp_path / "labels.json").set_classes(LABELS)
    np.testing.assert_array_equal(again.predict(_canvas(CANVASES[0])).probabilities, after.probabilities)
    with pytest.raises(OtptError, match="4 classes, not for these 2"):
        again.set_classes(["cat", "dog"])
    with pytest.raises(OtptError, match="Coverage"):
        Calibrated(fitted, coverage=0.9)


@pytest.mark.slow
def test_one_label_is_there_or_not() -> None:
    clf = otpt.Classifier(pocket())
    with pytest.warns(UserWarning, match="pizza"):
        clf.set_classes(["pizza"])
    images, present = [_canvas(each) for each in CANVASES * 5], ["pizza" in each for each in CANVASES * 5]
    found = [clf.predict(image).confidence for image in images[:4]]
    assert min(found[0], found[3]) > max(found[1:3])
    words = Rejector(clf.backbone, ["pizza"])
    crops = clf.backbone.encode_pixels(grid_views(images[1], clf.backbone.preprocessing), chunk=clf.backbone.chunk)
    assert found[1] == pytest.approx(float(expit(-clf.backbone.logit_scale * float(words(crops).min()))), abs=1e-6)
    clf.calibrate(images, present)
    calibrated = [clf.predict(image).confidence for image in images[:4]]
    assert [each > 0.5 for each in calibrated] == present[:4]
    clf.use_calibrations([]).set_classes(["pizza", "banana"])
    assert clf.method.name == "confident-half"
    assert clf.predict(images[1]).label == "banana"


def test_one_label_of_a_model_with_a_sigmoid_is_its_own() -> None:
    """SigLIP has a bias for this question."""
    clf = otpt.Classifier(pocket())
    clf.backbone = copy(clf.backbone)
    clf.backbone.logit_bias = -8.0
    with pytest.warns(UserWarning, match="pizza"):
        clf.set_classes(["pizza"])
    cosine = clf.embed(_canvas(["pizza"])) @ clf.text_features[0]
    expected = expit(clf.backbone.logit_scale * float(cosine) - 8.0)
    assert clf.predict(_canvas(["pizza"])).confidence == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("more", [{"method": "o-tpt"}, {"reject": True}, {"groups": {"a": ["cat"]}}])
def test_what_needs_one_label_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(OtptError, match="multi_label"):
        otpt.Classifier(pocket(), multi_label=True, classes=["cat", "dog"], **more)


def test_candidate_labels_of_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = otpt.Classifier(pocket(), "zero-shot").set_classes(["cat", "dog"])
    images = [_canvas(["pizza"]), _canvas(["banana"]), _canvas(["red apple"])]
    lists = [["pizza", "banana"], ["banana", "pizza", "hamburger"], ["pizza", "red apple"]]
    encoded: list[str] = []

    def tokenize(tower: Any, names: Sequence[str], prompt: Any) -> Any:
        encoded.extend(names)
        return fixed_tokens(tower, names, prompt)

    monkeypatch.setattr("otpt.methods.state.fixed_tokens", tokenize)
    found = clf.predict(images, candidate_labels=lists)
    assert sorted(encoded) == ["banana", "hamburger", "pizza", "red apple"]
    assert [each.label for each in found] == ["pizza", "banana", "red apple"]
    for image, own, each in zip(images, lists, found, strict=True):
        assert each.class_names == tuple(own)
        alone = clf.predict(image, candidate_labels=own)
        np.testing.assert_allclose(each.probabilities, alone.probabilities, atol=1e-5)
    assert clf.class_names == ("cat", "dog")


@pytest.mark.slow
def test_candidate_labels_of_each_image_by_other_methods() -> None:
    images, lists = [_canvas(["pizza"]), _canvas(["banana"])], [["pizza", "banana"], ["banana"]]
    found = otpt.Classifier(pocket(), views=4).predict(images, candidate_labels=lists)
    assert [each.method for each in found] == ["confident-half", "multi-label"]
    tuned = otpt.Classifier(pocket(), "tpt", views=4)
    lists[1] = ["banana", "hamburger"]
    for each, image, own in zip(tuned.predict(images, candidate_labels=lists), images, lists, strict=True):
        alone = tuned.predict(image, candidate_labels=own)
        np.testing.assert_allclose(each.probabilities, alone.probabilities, atol=1e-5)


@pytest.mark.parametrize("lists", [[["a", "b"]], [["a", "b"]] * 3, [["a", "b"], []], [["a", "b"], ["a", "a"]]])
def test_bad_candidate_labels(lists: list[list[str]]) -> None:
    with pytest.raises(OtptError, match=r"candidate_labels|'a'"):
        otpt.Classifier(pocket(), "zero-shot").predict([Image.new("RGB", (8, 8))] * 2, candidate_labels=lists)
