"""Several labels, one class, groups and examples together with everything else: each works, or is refused.

Over HTTP: tests/serve/test_clients.py and test_refusals.py.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import otpt
from otpt.data import ClassList, label_table
from otpt.errors import OtptError
from otpt.evaluation import Evaluation, evaluate
from otpt.export import check_exportable, describe
from otpt.methods import get_method
from otpt.runs import label_results
from otpt_ray import Classify

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
    ("several labels", "a budget"): "budget",
    ("several labels", "another seed"): "seed",
    ("several labels", "official precision"): "official_precision",
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
        clf = otpt.Classifier(backbone, more.pop("method", None), **fields, **more)
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


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def few_views(clf: Any) -> dict[str, int]:
    """Number of views of another classifier for the same question; independent labels have none."""
    return {} if clf.task.independent_labels else {"views": 2}


def _calibrated(clf: Any, classes: dict[str, Any], folder: Path, **asked: Any) -> Any:
    """A prediction with a calibration that was fitted on 24 images."""
    names = [*clf.class_names]
    images = [(name, image) for name in NAMES for image in _images(name, 6, 8)]
    labels: list[Any] = [[name] if name in names else [] for name, _ in images]
    if len(names) > 1 and not clf.task.multi_label:
        labels = [name for name, _ in images]
    clf.calibrate([image for _, image in images], labels).write(folder / "cal.json")
    given = {"classes" if name == "names" else name: value for name, value in classes.items()}
    fields = {"multi_label": clf.task.multi_label, "calibration": folder / "cal.json", **few_views(clf), **asked}
    again = otpt.Classifier(clf.backbone, **fields, **given)
    found = again.predict(EXAMPLES["pizza"][0])
    assert (found.set is None) == ("coverage" not in asked)
    assert found.set is None or "pizza" in found.set
    assert (found.abstained is None) == ("risk" not in asked)
    return found.label


def _on_ray(clf: Any, classes: dict[str, Any], folder: Path) -> Any:
    given = dict(classes)
    several = {"multi_label": True} if clf.task.multi_label else {}
    classify = Classify("pocket", given.pop("names", ()), **few_views(clf), **several, **given)
    found = classify({"bytes": np.array([_png(EXAMPLES["pizza"][0]), b"no image"], object)})
    assert [bool(each) for each in found["error"]] == [False, True]
    assert ("labels" in found) == clf.task.multi_label
    assert ("group_probabilities" in found) == (clf.task.groups is not None)
    return found["label"][0]


def _as_features(clf: Any, classes: dict[str, Any], folder: Path) -> Any:
    features = clf.embed(EXAMPLES["pizza"][0])[None, None]
    method = clf.method if clf.method.aggregate == "clean" else "zero-shot"
    return clf.classify_features(features, [method])[0][get_method(method).name].label


def _exported(clf: Any, classes: dict[str, Any], folder: Path) -> Any:
    check_exportable(clf.method, clf.protocol)
    assert set(describe(clf)["groups"]) == set(classes["groups"])
    return "pizza"


def _of_each_image(clf: Any, classes: dict[str, Any], folder: Path) -> Any:
    lists = [["pizza", "banana"], ["banana", "red apple", "pizza"]]
    first, second = clf.predict([EXAMPLES["pizza"][0]] * 2, candidate_labels=lists)
    assert second.class_names == tuple(lists[1])
    assert (first.method == "multi-label") == clf.task.multi_label
    return first.label


WAYS: dict[str, Any] = {
    "a calibration": _calibrated,
    "prediction sets": partial(_calibrated, coverage=0.8),
    "a risk": partial(_calibrated, risk=0.4),
    "Ray": _on_ray,
    "features": _as_features,
    "export": _exported,
    "labels of each image": _of_each_image,
}
LABELS_ONLY = ("several labels", "one class")
REFUSED_WAYS = {
    **{(question, way): "label" for question in LABELS_ONLY for way in ("prediction sets", "a risk")},
    **{(question, "features"): "pixels" for question in LABELS_ONLY},
    **{(question, "export"): "multi-label" for question in LABELS_ONLY},
    **{(question, "export"): "gda" for question in QUESTIONS if question.startswith("examples")},
}


@pytest.mark.filterwarnings("ignore:The probability that")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way(question: str, way: str, backbone: Any, tmp_path: Path) -> None:
    fields, classes = QUESTIONS[question]
    views = {} if fields.get("multi_label") else {"views": 2}
    clf = otpt.Classifier(backbone, **views, **fields).set_classes(**classes)
    if (question, way) in REFUSED_WAYS:
        with pytest.raises(OtptError, match=REFUSED_WAYS[question, way]) as caught:
            WAYS[way](clf, classes, tmp_path)
        assert "\n" not in str(caught.value)
    else:
        assert WAYS[way](clf, classes, tmp_path) == "pizza"


def test_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(OtptError, match="candidate_labels"):
        Classify("no-model", NAMES, candidate_labels=[NAMES])
    with pytest.raises(OtptError, match="coverage"):
        Classify("no-model", NAMES, multi_label=True, coverage=0.9)
    for name in ("groups", "examples"):
        with pytest.raises(OtptError, match=name):
            Evaluation(methods=["zero-shot" if name == "groups" else "gda"], **{name: {each: [each] for each in NAMES}})


def test_heat_maps_of_every_question(backbone: Any) -> None:
    data = otpt.data.emoji.load_emoji("emoji/food")
    canvas = Image.new("RGB", (256, 256), (240, 240, 235))
    canvas.paste(data.image(data.class_names.index("pizza")), (128, 128))
    for question, (fields, classes) in QUESTIONS.items():
        with pytest.warns(UserWarning, match="pizza") if question == "one class" else _nothing():
            clf = otpt.Classifier(backbone, **fields)
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
    named = label_table(table, ClassList(NAMES, NAMES))
    assert data.fingerprint != named.fingerprint
    run = evaluate(named, backbone, out=tmp_path / "run").run
    found = label_results([run])
    assert found.value[0] == pytest.approx(100)  # labels that no image has are left out
    known = found.dropna()
    assert (known.low <= known.value + 1e-9).all()
    assert list(found[found.metric == "map"].images) == [2, 1, 1, 0]
    clf = otpt.Classifier(backbone, multi_label=True).set_classes(NAMES)
    paths = [data.source(i) for i in range(3)]
    with pytest.raises(OtptError, match="melon"):
        clf.calibrate(paths, [["melon"], [], []])
    with pytest.raises(OtptError, match="3 images"):
        clf.calibrate(paths, [["red apple"], ["pizza"]])
    table.write_text("path,name\na.png,cat\n")
    with pytest.raises(OtptError, match="'name'"):
        label_table(table)
