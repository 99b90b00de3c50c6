"""Several labels per image: the grid of crops, its odds, Platt scaling, metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit

import otpt
from otpt.errors import OtptError
from otpt.metrics.multi_label import mean_average_precision, multi_label_ece, multi_label_f1, multi_label_nll
from otpt.tasks.multi_label import CROPS, fit_platt, grid_boxes, grid_views, log_odds, read_multi_labels


@pytest.mark.parametrize(("width", "height"), [(256, 256), (640, 480), (3, 500), (1, 1)])
def test_the_grid_covers_the_image(width: int, height: int) -> None:
    boxes = grid_boxes(width, height)
    assert len(boxes) == CROPS - 1
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


@pytest.mark.parametrize("per_class", [False, True])
def test_platt_finds_the_numbers_that_made_the_labels(per_class: bool) -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 3, (4000, 3))
    biases = np.array([-2.0, -1.0, 0.5]) if per_class else np.array([-1.0])
    present = rng.random(odds.shape) < expit(0.7 * odds + biases)
    found = fit_platt(odds, present, per_class=per_class)
    assert found.slope == pytest.approx(0.7, abs=0.03)
    assert found.biases == pytest.approx(tuple(biases), abs=0.15)
    if not per_class:  # maximum likelihood: the mean probability is the frequency
        assert found(odds).mean() == pytest.approx(present.mean(), abs=1e-3)


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
        read_multi_labels([["cat"], ["horse"]], ["cat", "dog"])
    with pytest.raises(OtptError, match="absent"):
        fit_platt(np.zeros((3, 2)), np.zeros((3, 2)))


def _canvas(names: list[str]) -> Image.Image:
    data = otpt.data.emoji.load_emoji("emoji/food")
    canvas = Image.new("RGB", (256, 256), (240, 240, 235))
    for place, name in zip([(0, 0), (128, 0), (0, 128), (128, 128)], names, strict=False):
        canvas.paste(data.image(data.class_names.index(name)), place)
    return canvas


LABELS = ["red apple", "pizza", "banana", "hamburger"]
CANVASES = [["red apple", "pizza"], ["banana"], ["hamburger", "banana", "red apple"], ["pizza", "hamburger"]]


def test_several_labels_of_an_image() -> None:
    clf = otpt.load("pocket", multi_label=True).set_classes(LABELS)
    for present in CANVASES:
        prediction = clf.predict(_canvas(present))
        assert {name for name, _ in prediction.top(len(present))} == set(present)
        assert prediction.labels_above(0.0) == [name for name, _ in prediction.top(4)]
        pixels = grid_views(_canvas(present), clf.backbone.preprocessing)
        logits = clf.backbone.encode_pixels(pixels, chunk=clf.backbone.chunk) @ clf.text_features.mT
        expected = expit(log_odds(clf.backbone.logit_scale * logits).numpy())
        np.testing.assert_allclose(prediction.probabilities, expected, atol=1e-6)


def test_calibrated_on_labelled_images(tmp_path: Path) -> None:
    clf = otpt.load("pocket", multi_label=True).set_classes(LABELS)
    before = clf.predict(_canvas(CANVASES[0])).probabilities
    fitted = clf.calibrate([_canvas(each) for each in CANVASES], CANVASES)
    after = clf.predict(_canvas(CANVASES[0])).probabilities
    odds = np.log(before) - np.log1p(-before)
    np.testing.assert_allclose(after, fitted(odds), atol=1e-6)
    fitted.write(tmp_path / "platt.json")
    again = otpt.load("pocket", multi_label=True, calibration=tmp_path / "platt.json").set_classes(LABELS)
    np.testing.assert_array_equal(again.predict(_canvas(CANVASES[0])).probabilities, after)
    with pytest.raises(OtptError, match="other classes"):
        again.set_classes(["cat", "dog"])


@pytest.mark.parametrize("more", [{"method": "o-tpt"}, {"reject": True}, {"groups": {"a": ["cat"]}}])
def test_what_needs_one_label_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(OtptError, match="multi_label"):
        otpt.load("pocket", multi_label=True, classes=["cat", "dog"], **more)
