"""Maps fitted on labels, against scipy, scikit-learn and literal formulas; and the calibration file."""

from __future__ import annotations

import copy
import json
import pickle
import re
import warnings
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.data.labelled import Floats, facts, labelled
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_softmax
from sklearn.isotonic import IsotonicRegression

from otpt.calibration import (
    Calibrated,
    Calibration,
    fit_calibration,
    fit_label_calibration,
    fit_temperature,
    matching_temperature,
    read_calibration,
)
from otpt.calibration.arrays import NUMPY
from otpt.calibration.conformal import conformal_scores
from otpt.calibration.maps import (
    MAPS,
    OF_LABELS,
    CalibrationMap,
    as_stored,
    choose_map,
    fit_map,
    stratified_folds,
    with_confidence,
)
from otpt.errors import OtptError


def logs(p: Floats) -> Floats:
    return np.log(p.astype(np.float32).astype(np.float64))


def test_temperature_is_the_minimum_of_nll_and_prior() -> None:
    p, y = labelled(60)

    def loss(b: float) -> float:
        nll = -log_softmax(b * logs(p), axis=1)[np.arange(len(y)), y].sum()
        return float(nll + 5.0 * (b - np.log(b)))

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-10}).x
    assert fit_map("temperature", p, y).parameters["temperature"] == pytest.approx(1 / best, rel=1e-6)


@pytest.mark.parametrize("right", [True, False])
def test_six_images_do_not_send_the_temperature_to_its_bound(right: bool) -> None:
    """Labels that are all right, or all wrong: without a prior the fit has no minimum, and ends at 0.001 or 1000."""
    z = torch.tensor([[4.0, 1.0, 0.0]] * 6)
    y = torch.full((6,), 0 if right else 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unbounded = fit_temperature(z, y)
    assert unbounded in {1e-3, 1e3}
    kept = fit_temperature(z, y, prior=5.0)
    assert (0.5 < kept < 1.0) if right else (1.0 < kept < 10.0)
    with pytest.raises(OtptError, match="prior >= 0"):
        fit_temperature(z, y, prior=-1.0)


@pytest.mark.parametrize("kind", ["bias", "vector"])
def test_linear_maps_are_the_minimum_of_the_written_objective(kind: str) -> None:
    p, y = labelled(300, classes=4, seed=3)
    z, classes = logs(p), 4

    def loss(point: Floats) -> float:
        b, d, c = point[0], point[1 : 1 + classes], point[1 + classes :]
        d = d if kind == "vector" else 0.0 * d
        nll = -log_softmax((b + d) * z + c, axis=1)[np.arange(len(y)), y].sum()
        return float(nll + 5.0 * (b - np.log(b)) + 0.5 * (c**2).sum() + 12.5 * (d**2).sum())

    start = np.concatenate([[1.0], np.zeros(2 * classes)])
    bounds = [(1e-3, None), *[(None, None)] * (2 * classes)]
    best = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-8}).x
    slopes = best[0] + (best[1 : 1 + classes] if kind == "vector" else np.zeros(classes))
    found = fit_map(kind, p, y).parameters
    assert found["slopes"] == pytest.approx(slopes, abs=2e-4)
    assert found["biases"] == pytest.approx(best[1 + classes :], abs=2e-4)


@pytest.mark.parametrize("flip", [False, True])
def test_beta_is_the_constrained_maximum(flip: bool) -> None:
    """Flipped outcomes pull a and b below zero, where they must stop."""
    p, y = labelled(300, seed=5)
    stored = as_stored(p)
    if flip:
        right = stored.argmax(axis=1) == y
        y = np.where(right, (y + 1) % 8, stored.argmax(axis=1)).astype(np.int64)
    s = stored.max(axis=1)
    rest = stored.sum(axis=1) - s
    right = stored.argmax(axis=1) == y

    def loss(point: Floats) -> float:
        odds = point[0] * np.log(s) - point[1] * np.log(rest) + point[2]
        nll = -np.where(right, np.log(expit(odds)), np.log(expit(-odds))).sum()
        return float(nll + ((point - [1.0, 1.0, 0.0]) ** 2).sum() / 2)

    bounds = [(0, None), (0, None), (None, None)]
    best = minimize(loss, [1.0, 1.0, 0.0], method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-9}).x
    found = fit_map("beta", p, y).parameters
    assert [found["a"], found["b"], found["c"]] == pytest.approx(best, abs=2e-3)
    assert loss(np.array([found["a"], found["b"], found["c"]])) <= loss(best) + 1e-8
    assert (min(found["a"], found["b"]) == 0.0) == flip


def test_isotonic_is_scikit_learns() -> None:
    p, y = labelled(700, seed=7)
    p = np.round(p, 2) + 1e-4  # with ties
    p = as_stored(p / p.sum(axis=1, keepdims=True))
    confidence, right = p.max(axis=1), (p.argmax(axis=1) == y).astype(float)
    n = len(y)
    theirs = IsotonicRegression(out_of_bounds="clip", y_min=1 / (n + 2), y_max=(n + 1) / (n + 2))
    theirs.fit(confidence, right)
    asked = np.linspace(0, 1, 501)
    found = fit_map("isotonic", p, y).parameters
    assert np.interp(asked, found["x"], found["y"]) == pytest.approx(theirs.predict(asked), abs=1e-12)


def test_the_wanted_confidence_is_reached_by_the_matching_temperature() -> None:
    p, _ = labelled(40, seed=9)
    wanted = np.random.default_rng(0).uniform(0.2, 0.99, len(p))
    rest = (1 - wanted[:, None]) / 7
    reference = np.log(np.concatenate([wanted[:, None], np.repeat(rest, 7, axis=1)], axis=1))
    tau = matching_temperature(torch.from_numpy(np.log(p))[:, None], torch.from_numpy(reference)[:, None]).numpy()
    expected = np.exp(log_softmax(np.log(p) / tau[:, None], axis=1))
    found = with_confidence(NUMPY, p, wanted)
    assert found == pytest.approx(expected, abs=1e-8)
    assert found.max(axis=1) == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("kind", MAPS)
def test_a_map_gives_distributions_and_keeps_the_label_if_it_says_so(kind: str) -> None:
    p, y = labelled(600, seed=11)
    fitted = fit_map(kind, p, y)
    extreme = np.array([[1.0, *[0.0] * 7], [0.125] * 8, [0.5, 0.5, *[0.0] * 6], [1 - 1e-7, 1e-7, *[0.0] * 6]])
    new = np.concatenate([labelled(400, seed=12)[0], extreme])
    found = fitted(new)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    same = found[: len(new) - 3].argmax(axis=1) == as_stored(new)[: len(new) - 3].argmax(axis=1)
    assert same.all() or not MAPS[kind].keeps_label
    if kind in {"bias", "vector"}:
        assert not fitted.keeps_label
    one = np.stack([fitted(row) for row in new[::10]])
    assert np.array_equal(one, found[::10]), "an image does not depend on its neighbours"


def test_folds_are_stratified_and_cross_validation_is_what_it_says() -> None:
    p, y = labelled(205, seed=13)
    fold = stratified_folds(y)
    for label in range(8):
        counts = np.bincount(fold[y == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(fold)) == 0
    choice = choose_map(p, y)
    assert list(choice.nll) == ["identity", "temperature", "beta"], "isotonic needs more labels"
    for name, nll in choice.nll.items():
        total = 0.0
        for k in range(5):
            fitted = fit_map(name, p[fold != k], y[fold != k])
            total -= np.log(fitted(p[fold == k])[np.arange((fold == k).sum()), y[fold == k]]).sum()
        assert nll == pytest.approx(total / len(y), abs=1e-12)
    assert choice.map.kind == min(choice.nll, key=choice.nll.__getitem__) != "identity"
    assert choice.map == choose_map(p, y).map


def test_what_the_labels_cannot_carry_is_refused() -> None:
    p, y = labelled(60)
    with pytest.raises(OtptError, match="'isotonic' needs 500 labels for 8 classes, but got"):
        choose_map(p, y, maps=["isotonic"])
    with pytest.raises(OtptError, match="needs 200 labels"):
        choose_map(p, y, maps=["vector"])
    with pytest.raises(OtptError, match="Unknown map 'platt'"):
        choose_map(p, y, maps=["platt"])
    with pytest.raises(OtptError, match="Unknown map"):
        CalibrationMap("pickle")


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    p, y = labelled(150, seed=41)
    return fit_calibration(p, y, facts(), origin={"dataset": "pets", "seed": 0})


def test_what_is_read_is_what_was_written(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    calibration.write(path)
    found = read_calibration(path)
    assert found.as_dict() == calibration.as_dict()
    assert found.digest == calibration.digest
    again = tmp_path / "again.json"
    found.write(again)
    assert again.read_bytes() == path.read_bytes()
    new, _ = labelled(50, seed=42)
    first, second = (Calibrated(each, coverage=0.8, risk=0.5) for each in (calibration, found))
    for row in new:
        one, two = first.answer(row), second.answer(row)
        assert np.array_equal(one.probabilities, two.probabilities)
        assert (one.index, one.classes, one.abstained) == (two.index, two.classes, two.abstained)


def test_the_file_holds_all_scores_of_the_labels(calibration: Calibration) -> None:
    p, y = labelled(150, seed=41)
    for kind in ("lac", "aps", "raps"):
        own = conformal_scores(kind, as_stored(p))[np.arange(150), y]
        for label in range(8):
            assert calibration.scores[kind].get(label, []) == sorted(own[y == label])
    stored = as_stored(p)
    assert sorted(calibration.confidences) == sorted(stored.max(axis=1))
    assert calibration.correct.count("1") == (stored.argmax(axis=1) == y).sum()


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_any_changed_digit_is_found(calibration: Calibration, tmp_path: Path, at: float) -> None:
    path = tmp_path / "cal.json"
    calibration.write(path)
    text = path.read_text(encoding="utf-8")
    place = text.index("0.", int(at * len(text))) + 2  # the last digit of a float may not change its value
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :], encoding="utf-8")
    with pytest.raises(OtptError, match=r"its checksum is wrong|is not valid JSON"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": 1', "is not valid JSON"),
        (b"\x80\x04\x95", "is not valid JSON"),
        (b"[]", "is not a calibration file"),
        (b"3", "is not a calibration file"),
        (b'{"temperature": 1.5}', "is not a calibration file"),
        (b'{"format": 99, "checksum": ""}', "'format' is 99: expected 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "cal.json"
    path.write_bytes(content)
    with pytest.raises(OtptError, match=words) as refused:
        read_calibration(path)
    assert not re.search(r"pydantic|validation error|Input should|instance of", str(refused.value))
    with pytest.raises(OtptError, match="There is no calibration file"):
        read_calibration(tmp_path / "missing.json")


NAMES = [f"class {i}" for i in range(8)]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            "model",
            {"name": "RN50", "fingerprint": "f" * 16},
            r"model.name 'tiny' \(not 'RN50'\), model.fingerprint '0123",
        ),
        ("method", {"name": "o-tpt", "numbers": {}}, r"method.name 'tpt' \(not 'o-tpt'\)"),
        ("method.numbers.steps", 2, r"method.numbers.steps 1 \(not 2\)"),
        ("classes", NAMES[:-1], "8 classes, not for these 7"),
        ("classes", [*NAMES[:-1], "dog"], "these 8 classes with other names: 'class 7', not 'dog'"),
        ("classes", [*NAMES[:-2], *NAMES[:-3:-1]], "these 8 classes in another order: 'class 6', not 'class 7'"),
        ("prompt.name", "an emoji of a", "prompt.name .*an emoji of a"),
        ("prompt.tokens", 3, "prompt.tokens .*3"),
        ("views", "views-1 n=32 augmix=on", r"views 'views-1 n=64 augmix=on' \(not 'views-1 n=32"),
        ("official_precision", True, r"official_precision False \(not True\)"),
    ],
)
def test_another_purpose_is_refused_by_name(calibration: Calibration, path: str, value: Any, words: str) -> None:
    other = copy.deepcopy(dict(calibration.facts))
    calibration.check(other)
    *parts, last = path.split(".")
    reduce(lambda found, part: found[part], parts, other)[last] = value
    with pytest.raises(OtptError, match=f"The calibration is for {words}"):
        calibration.check(other)


def test_the_same_weights_under_another_name_are_the_same_model(calibration: Calibration) -> None:
    calibration.check({**calibration.facts, "model": {"name": "copy.pt", "fingerprint": "0123456789abcdef"}})


def test_bad_labels_are_refused() -> None:
    p, y = labelled(150, seed=41)
    with pytest.raises(OtptError, match="6 labelled images"):
        fit_calibration(p[:6], y[:6], facts())
    with pytest.raises(OtptError, match="All 150 labels are of the class 'class 3'"):
        fit_calibration(p, np.full(150, 3), facts())
    with pytest.raises(OtptError, match="labels from 0 to 7, but got 8"):
        fit_calibration(p, np.where(y == 7, 8, y), facts())
    with pytest.raises(OtptError, match="probabilities of 9 classes, but got 8"):
        fit_calibration(p, y, facts(9))
    with pytest.raises(OtptError, match="got -1"):
        fit_calibration(p, y, facts(), penalty=-1.0)


def test_reliability_is_of_images_that_the_map_has_not_seen(calibration: Calibration) -> None:
    """The NLL after is the cross-validated one, and the estimate of each metric is that of its function."""
    from otpt.metrics import evaluate

    p, y = labelled(150, seed=41)
    assert calibration.reliability["after"]["nll"][0] == pytest.approx(
        calibration.cross_validation[calibration.map.kind], abs=1e-12
    )
    before = evaluate(as_stored(p), y)
    for name in ("accuracy", "nll", "ece", "debiased_ece"):
        value, low, high = calibration.reliability["before"][name]
        assert value == pytest.approx(getattr(before, name), abs=1e-6)
        assert low < high
    diagram = calibration.diagram["before"]
    assert diagram.counts.sum() == 150
    filled = diagram.counts > 0
    assert float((diagram.counts[filled] * np.abs(diagram.gaps[filled])).sum() / 150) == pytest.approx(
        before.ece, abs=1e-6
    )
    assert json.loads(json.dumps(calibration.as_dict())) == calibration.as_dict()


@cache
def calibration_of(kind: str) -> Calibration:
    """Calibrations of every kind: "temperature" … for one label per image, "platt 3" for three labels."""
    name, _, count = kind.partition(" ")
    if name in MAPS:
        p, y = labelled(500, 4, seed=2)
        fitted = fit_calibration(p, y, facts(4))
        return fitted.model_copy(update={"map": fit_map(name, p, y)})
    draw = np.random.default_rng(4)
    odds = 2 * draw.normal(size=(60, int(count)))
    present = draw.uniform(size=odds.shape) < expit(odds / 2)
    fitted = fit_label_calibration(expit(odds), present, facts(int(count)))
    return fitted.model_copy(update={"map": fit_map(name, expit(odds), present)})


KINDS = [*MAPS, *(f"{name} {count}" for name in OF_LABELS for count in (3, 1))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_calibration_is_shown(kind: str) -> None:
    calibration = calibration_of(kind)
    before, after = calibration.nll
    for text in (repr(calibration), str(calibration), calibration._repr_html_()):
        assert kind.split()[0] in text
        assert f"{before:.3f}" in text
        assert f"{after:.3f}" in text
    by_name = {metric.name: metric for metric in calibration.held_out}
    assert by_name["nll" if kind in MAPS else "label_nll"].before.value == before
    for metric in by_name.values():
        value, interval, *_ = metric.cells()
        assert f"<td>{metric.title}</td><td>{value}</td><td>{interval}</td>" in calibration._repr_html_()
    ece = by_name["ece" if kind in MAPS else "label_ece"]
    assert ece.title == "ECE %"
    assert 0.1 < ece.before.value < 100  # percent for every kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_every_kind_are_equal(kind: str, copied: Callable[[Calibration], Calibration]) -> None:
    calibration = calibration_of(kind)
    again = copied(calibration)
    assert again == calibration
    assert hash(again) == hash(calibration)
    assert Calibrated(again) == Calibrated(calibration)
    assert repr(again) == repr(calibration)
    other = calibration.model_copy(update={"labels": calibration.labels + 1})
    assert other != calibration
    assert calibration != calibration.digest


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_equal_after_reading(kind: str, tmp_path: Path) -> None:
    calibration_of(kind).write(tmp_path / "cal.json")
    assert read_calibration(tmp_path / "cal.json") == calibration_of(kind)


def test_names_are_escaped_in_html() -> None:
    named = calibration_of("platt 3").model_copy(update={"facts": {**facts(3), "method": {"name": "<b>"}}})
    assert "<b>" not in named._repr_html_()
