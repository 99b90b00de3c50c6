"""Several labels, one class, groups and examples together with everything else: each works, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import otpt
from otpt.data import ClassList, label_table
from otpt.errors import OtptError
from otpt.tasks.multi_label import evaluate_labels

NAMES = ["red apple", "pizza", "banana"]


@pytest.fixture(scope="module")
def backbone() -> Any:
    return otpt.load("pocket").backbone


def _images(name: str, seed: int, count: int = 2) -> list[Image.Image]:
    data = otpt.data.emoji.load_emoji("emoji/food", seed=seed, compositions=count)
    return [data.image(data.class_names.index(name) + k * len(data.class_names)) for k in range(count)]


EXAMPLES = {name: _images(name, 5) for name in NAMES}
QUESTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "several labels": ({"multi_label": True}, {"names": NAMES}),
    "one class": ({}, {"names": ["pizza"]}),
    "groups": ({}, {"names": NAMES, "groups": {"fruit": ["red apple", "banana"]}}),
    "examples": ({}, {"examples": EXAMPLES}),
    "examples, texts and groups": (
        {},
        {"names": NAMES, "examples": EXAMPLES, "groups": {"fruit": ["red apple", "banana"]}},
    ),
}
WITH: dict[str, dict[str, Any]] = {
    "rejection": {"reject": True},
    "a budget": {"budget": 16},
    "another seed": {"seed": 3},
    "official precision": {"official_precision": True},
    "a method that tunes": {"method": "tpt"},
    "a stream": {"method": "tda"},
}
REFUSED = {
    ("several labels", "rejection"): "multi_label",
    ("one class", "rejection"): "pizza",
    **{(question, "a method that tunes"): "tpt" for question in QUESTIONS if question != "groups"},
    **{(question, "a stream"): "tda" for question in QUESTIONS if question != "groups"},
    ("one class", "a method that tunes"): "pizza",
    ("one class", "a stream"): "pizza",
}
"""Combinations that are refused, and what the sentence names."""


@pytest.mark.filterwarnings("ignore:The probability that")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("other", WITH)
def test_together(question: str, other: str, backbone: Any) -> None:
    fields, classes = QUESTIONS[question]

    def make() -> Any:
        more = dict(WITH[other])
        clf = otpt.Classifier(backbone, more.pop("method", "confident-half"), **fields, **more)
        return clf.set_classes(**classes)

    if (question, other) in REFUSED:
        with pytest.raises(OtptError, match=REFUSED[question, other]) as caught:
            make()
        assert str(caught.value).count("\n") == 0
        return
    prediction = make().predict(EXAMPLES["pizza"][0])
    assert prediction.label == "pizza"
    assert np.isfinite(prediction.probabilities).all()
    assert (prediction.rejected is None) == (other != "rejection")


@pytest.mark.parametrize("question", ["groups", "examples"])
def test_with_prediction_sets_and_a_risk(question: str, backbone: Any, tmp_path: Path) -> None:
    fields, classes = QUESTIONS[question]
    clf = otpt.Classifier(backbone, views=2, **fields).set_classes(**classes)
    images = [(name, image) for name in NAMES for image in _images(name, 6, 8)]
    calibration = clf.calibrate([image for _, image in images], [name for name, _ in images])
    calibration.write(tmp_path / "cal.json")
    again = otpt.Classifier(backbone, clf.method, views=2, calibration=tmp_path / "cal.json", coverage=0.8, risk=0.4)
    again.set_classes(**classes)
    prediction = again.predict(EXAMPLES["pizza"][0])
    assert prediction.set is not None
    assert "pizza" in prediction.set
    assert prediction.abstained is not None


def test_heat_maps_of_every_question(backbone: Any) -> None:
    data = otpt.data.emoji.load_emoji("emoji/food")
    canvas = Image.new("RGB", (256, 256), (240, 240, 235))
    canvas.paste(data.image(data.class_names.index("pizza")), (128, 128))
    for question, (fields, classes) in QUESTIONS.items():
        with pytest.warns(UserWarning, match="pizza") if question == "one class" else _nothing():
            clf = otpt.Classifier(backbone, "gda" if "examples" in classes else "confident-half", views=2, **fields)
            clf.set_classes(**classes)
        x, y = clf.explain(canvas, "pizza").peak
        assert min(x, y) > 110, question


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_a_table_of_several_labels(tmp_path: Path, backbone: Any) -> None:
    for name in NAMES:
        EXAMPLES[name][0].save(tmp_path / f"{name}.png")
    table = tmp_path / "labels.csv"
    table.write_text("path,labels\nred apple.png,red apple\npizza.png,pizza; \nbanana.png,\n")
    data = label_table(table)
    assert data.class_names == ("pizza", "red apple")
    assert [data.labels_of(i) for i in range(3)] == [(1,), (0,), ()]
    assert data.fingerprint != label_table(table, ClassList(NAMES, NAMES)).fingerprint
    paths, labels = [data.source(i) for i in range(3)], [["red apple"], ["pizza"], []]
    clf = otpt.Classifier(backbone, multi_label=True).set_classes(NAMES)
    found = evaluate_labels(clf, paths, labels)
    assert found.value[0] == pytest.approx(100)  # labels that no image has are left out
    known = found.dropna()
    assert (known.low <= known.value + 1e-9).all()
    assert list(found[found.metric == "map"].images) == [2, 1, 1, 0]
    with pytest.raises(OtptError, match="melon"):
        evaluate_labels(clf, paths, [["melon"], [], []])
    with pytest.raises(OtptError, match="3 images"):
        evaluate_labels(clf, paths, labels[:2])
    table.write_text("path,name\na.png,cat\n")
    with pytest.raises(OtptError, match="'name'"):
        label_table(table)
