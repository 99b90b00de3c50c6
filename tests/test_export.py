"""ONNX files: onnxruntime against predictions, for every aggregation and map that is offered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import otpt
from otpt.calibration.maps import MAPS, CalibrationMap, Parameters
from otpt.errors import OtptError
from otpt.export import ClassifierGraph, Description, check_exportable, to_onnx
from otpt.methods import Method, Protocol, get_method
from otpt.methods.stages import Stages

onnxruntime = pytest.importorskip("onnxruntime")

NAMES = ["red apple", "pizza", "hammer", "guitar", "dog face"]
OTHER_NAMES = ["banana", "cat face", "rocket"]
SCALE = 3.0
SIX_VIEWS = otpt.ViewRecipe(n_views=6, augmix=False)
PARAMETERS: dict[str, Parameters] = {
    "identity": {},
    "temperature": {"temperature": 1.7},
    "beta": {"a": 0.6, "b": 0.9, "c": -0.3},
    "isotonic": {"x": [0.2, 0.4, 0.4001, 0.9], "y": [0.25, 0.3, 0.55, 0.8]},
    "bias": {"slopes": [0.8] * 5, "biases": [0.1, -0.2, 0.0, 0.3, 0.0]},
    "vector": {"slopes": [0.8, 1.0, 1.1, 0.7, 0.9], "biases": [0.1, -0.2, 0.0, 0.3, 0.0]},
}
METHODS = [
    *map(get_method, ("zero-shot", "confident-half", "mean-probability", "mean-logit", "mean-feature", "tsallis")),
    get_method("mean-logit").override({"mean_fraction": 0.3, "clean_weight": 0.2}),
    get_method("mean-feature").override({"mean_fraction": 0.3, "clean_weight": 0.2}),
    get_method("zero-shot+view-weights").override({"clean_weight": 0.7, "rest_weight": 0.2}),
    get_method("mean-logit+ts").override({"temperature": 1.2}),
]


class _Flat(torch.nn.Module):
    """Image tower that changes nothing."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1)


class _Together(torch.nn.Module):
    """Several modules on the same inputs: (B, n, C)."""

    def __init__(self, parts: list[ClassifierGraph]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, views: torch.Tensor, text_features: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(views, text_features) for part in self.parts], dim=1)


def _graph(method: Method, calibration_map: CalibrationMap | None = None) -> ClassifierGraph:
    stages = Stages(method, Protocol())
    return ClassifierGraph(_Flat(), stages, SCALE, 0.0, calibration_map).eval()


def _facts(*, calibrated: bool) -> Description:
    return {
        "backbone": "flat",
        "fingerprint": "",
        "classes": NAMES,
        "groups": {},
        "method": "",
        "views": 6,
        "calibrated": calibrated,
        "preprocessing": {},
    }


def _session(model: bytes | Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _random_views(images: int) -> torch.Tensor:
    return torch.randn(images, 6, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def _predictions(views: torch.Tensor, texts: torch.Tensor, method: Method) -> npt.NDArray[np.float64]:
    features = torch.nn.functional.normalize(views.flatten(2), dim=-1)
    return otpt.functional.predict(features, texts, method=method, logit_scale=SCALE).numpy()


def test_every_aggregation_in_onnxruntime() -> None:
    """50 images with six views each through a tower that changes nothing, with two lists of labels, in one file."""
    views, texts = _random_views(50), torch.eye(12)[:5]
    tied = torch.eye(12)[[0, 1, 1, 0, 1, 0]].reshape(1, 6, 3, 2, 2)  # equal entropies keep the order of the views
    parts = _Together([_graph(method) for method in METHODS]).eval()
    session = _session(to_onnx(parts, views[:2], texts, _facts(calibrated=False)))
    other_texts = 5 * torch.eye(12)[:2]  # of any norm
    of_labels = session.run(None, {"views": views.numpy()})
    of_others = session.run(None, {"views": tied.numpy(), "text_features": other_texts.numpy()})
    for inputs, labels, (probabilities,) in ((views, texts, of_labels), (tied, other_texts, of_others)):
        for column, method in enumerate(METHODS):
            expected = _predictions(inputs, labels, method)
            np.testing.assert_allclose(probabilities[:, column], expected, atol=1e-6, err_msg=method.name)


def test_every_map_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.calibration.maps._BISECTIONS", 6)  # unrolled in the file; all of them in the long test
    _check_maps()


@pytest.mark.long
def test_every_map_in_onnxruntime_with_all_bisections() -> None:
    _check_maps()


def _check_maps() -> None:
    method = get_method("confident-half")
    views, texts = _random_views(50), torch.eye(12)[:5]
    maps = [CalibrationMap(kind, PARAMETERS[kind]) for kind in MAPS]
    parts = _Together([_graph(method, calibration_map) for calibration_map in maps]).eval()
    session = _session(to_onnx(parts, views[:2], texts, _facts(calibrated=True)))
    (probabilities,) = session.run(None, {"views": views.numpy()})
    raw = _predictions(views, texts, method)
    for column, calibration_map in enumerate(maps):
        expected = calibration_map(raw)
        np.testing.assert_allclose(probabilities[:, column], expected, atol=1e-6, err_msg=calibration_map.kind)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_map_of_tensors_is_that_of_arrays(kind: str, scale: float) -> None:
    calibration_map = CalibrationMap(kind, PARAMETERS[kind])
    logits = scale * torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probabilities = torch.cat([logits.softmax(dim=-1), torch.eye(5, dtype=torch.float64), torch.full((1, 5), 0.2)])
    expected = calibration_map(probabilities.numpy())
    np.testing.assert_allclose(calibration_map.of_tensor(probabilities).numpy(), expected, atol=1e-12)


def _views_of(clf: otpt.Classifier, images: list[otpt.images.ImageSource]) -> npt.NDArray[np.float32]:
    views = [
        otpt.views.make_views(image, clf.recipe, clf.backbone.preprocessing, seed=0, image_id=str(i))
        for i, image in enumerate(images)
    ]
    return np.stack(views)


def _check_file(clf: otpt.Classifier, path: Path) -> onnxruntime.InferenceSession:
    """Export a classifier and compare the file with its predictions of 20 images."""
    data = otpt.data.emoji.load_emoji("emoji/food")
    images = [data.image(i) for i in range(20)]
    clf.export(path)
    session = _session(path)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["otpt"])
    views = _views_of(clf, images)[:, : facts["views"]]
    (probabilities,) = session.run(None, {"views": views})
    expected = [clf.predict(image, image_id=str(i)).probabilities for i, image in enumerate(images)]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    return session


def test_a_file_with_its_labels_and_with_others(tmp_path: Path) -> None:
    """From the views to probabilities by onnxruntime alone, for the default method."""
    clf = otpt.load("pocket", views=SIX_VIEWS).set_classes(NAMES)
    session = _check_file(clf, tmp_path / "model.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["otpt"])
    assert facts["classes"] == NAMES
    assert facts["views"] == 6
    assert not facts["calibrated"]
    image = otpt.data.emoji.load_emoji("emoji/food").image(3)
    views = _views_of(clf, [image])
    clf.set_classes(OTHER_NAMES)
    inputs = {"views": views, "text_features": clf.text_features.numpy()}
    (probabilities,) = session.run(None, inputs)
    np.testing.assert_allclose(probabilities[0], clf.predict(image, image_id="0").probabilities, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_a_file_predicts_as_the_classifier(method: str, tmp_path: Path) -> None:
    clf = otpt.load("pocket", method, views=SIX_VIEWS).set_classes(NAMES)
    _check_file(clf, tmp_path / "model.onnx")


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in MAPS if kind != "identity"])
def test_a_calibrated_file_predicts_as_the_classifier(kind: str, tmp_path: Path) -> None:
    clf = otpt.load("pocket", "confident-half", views=SIX_VIEWS).set_classes(NAMES)
    data = otpt.data.emoji.load_emoji("emoji/food")
    calibration = clf.calibrate([data.image(i) for i in range(25)], [i % 5 for i in range(25)])
    calibration_map = CalibrationMap(kind, PARAMETERS[kind])
    changed = calibration.model_copy(update={"map": calibration_map})
    clf = otpt.load("pocket", "confident-half", views=SIX_VIEWS, classes=NAMES, calibration=changed)
    session = _check_file(clf, tmp_path / "model.onnx")
    assert not session.get_overridable_initializers()
    assert json.loads(session.get_modelmeta().custom_metadata_map["otpt"])["calibrated"]


@pytest.mark.parametrize(
    "method",
    ["o-tpt", "tda", "zero", "tpt+sals", "zero-shot+se", "o-tpt+agreement", "maple", "cocoop", "gda", "multi-label"],
)
def test_what_cannot_be_exported_is_refused_by_name(method: str) -> None:
    with pytest.raises(OtptError, match=method.replace("+", r"\+")):
        check_exportable(get_method(method), Protocol())


@pytest.mark.parametrize("fields", [{"official_precision": True}, {"budget": 32}])
def test_a_protocol_without_a_fixed_graph_is_refused(fields: dict[str, object]) -> None:
    method = get_method("confident-half")
    check_exportable(method, Protocol())
    with pytest.raises(OtptError):
        check_exportable(method, Protocol(**fields))
