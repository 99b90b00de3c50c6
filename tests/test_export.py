"""ONNX files: torch against onnxruntime, for every aggregation and map that is offered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import otpt
from otpt.backbones import FeatureBackbone
from otpt.calibration.maps import CalibrationMap
from otpt.errors import OtptError
from otpt.export import MAPS, Exported, check_exportable
from otpt.methods import get_method

onnxruntime = pytest.importorskip("onnxruntime")
NAMES = ["red apple", "pizza", "hammer", "guitar", "dog face"]
PARAMETERS: dict[str, dict[str, object]] = {
    "identity": {},
    "temperature": {"temperature": 1.7},
    "beta": {"a": 0.6, "b": 0.9, "c": -0.3},
    "isotonic": {"x": [0.2, 0.4, 0.4001, 0.9], "y": [0.25, 0.3, 0.55, 0.8]},
    "bias": {"slopes": [0.8] * 5, "biases": [0.1, -0.2, 0.0, 0.3, 0.0]},
    "vector": {"slopes": [0.8, 1.0, 1.1, 0.7, 0.9], "biases": [0.1, -0.2, 0.0, 0.3, 0.0]},
}


@pytest.mark.long
@pytest.mark.parametrize("method", ["zero-shot", "confident-half", "mean-logit", "mean-feature"])
def test_a_file_says_what_the_classifier_says(method: str, tmp_path: Path) -> None:
    """50 images from the package's views to probabilities, by onnxruntime alone."""
    data = otpt.data.emoji.load_emoji("emoji/food")
    clf = otpt.load("pocket", method, views=otpt.ViewRecipe(n_views=6, augmix=False)).set_classes(NAMES)
    clf.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["otpt"])
    assert facts["classes"] == NAMES
    assert facts["views"] == (1 if method == "zero-shot" else 6)
    views = np.stack(
        [
            otpt.views.make_views(data.image(i), clf.recipe, clf.backbone.preprocessing, seed=0, image_id=str(i))
            for i in range(50)
        ]
    )
    found = session.run(None, {"views": views[:, : facts["views"]]})[0]
    expected = [clf.predict(data.image(i), image_id=str(i)).probabilities for i in range(50)]
    np.testing.assert_allclose(found, expected, atol=2e-6)


class _Flat(torch.nn.Module):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1)


def _exported(kind: str) -> tuple[Exported, CalibrationMap]:
    """A map after an image tower that changes nothing."""
    own = CalibrationMap(kind, PARAMETERS[kind])
    texts = 3 * torch.eye(12)[:5]
    return Exported(_Flat(), texts, 0.0, get_method("zero-shot"), temperature=1.0, numbers={}, map=own).eval(), own


class _Together(torch.nn.Module):
    """Several modules on the same views."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, views: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part(views) for part in self.parts)


METHODS = [
    get_method(name) for name in ("zero-shot", "confident-half", "mean-probability", "mean-logit", "mean-feature")
]
METHODS.append(get_method("mean-logit+ts").override({"temperature": 1.2}))


def test_every_aggregation_and_map_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 images with six views each through a tower that changes nothing, in one file."""
    monkeypatch.setattr("otpt.export._BISECTIONS", 4)  # unrolled in the file; all of them in the long test
    backbone, texts = FeatureBackbone(12, 3.0, "flat"), torch.eye(12)[:5]
    clf = otpt.Classifier(backbone, "zero-shot").set_classes(NAMES, text_features=texts)
    parts: list[torch.nn.Module] = []
    for method in METHODS:
        numbers = {**method.defaults, **method.settings_for("fine-grained")}
        temperature = method.temperature or 1.0
        own = CalibrationMap("identity")
        parts.append(
            Exported(_Flat(), 3 * texts, 0.0, method, temperature=temperature, numbers=numbers, map=own).eval()
        )
    parts += [_exported(kind)[0] for kind in MAPS]
    views = torch.randn(50, 6, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    batch, count = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("views", min=1, max=64)
    program = torch.onnx.export(
        _Together(parts).eval(), (views[:2, :3],), dynamic_shapes=({0: batch, 1: count},), dynamo=True, verbose=False
    )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: views.numpy()})
    features = torch.nn.functional.normalize(views.flatten(2), dim=-1)
    expected = clf.classify_features(features, METHODS)
    for method, own in zip(METHODS, found, strict=False):
        known = [each[method.name].probabilities for each in expected]
        np.testing.assert_allclose(own, known, atol=2e-6, err_msg=method.name)
    for part, own in zip(parts, found, strict=True):
        np.testing.assert_allclose(own, part(views).numpy(), atol=2e-6)


VIEWS = torch.rand(50, 1, 3, 2, 2, generator=torch.Generator().manual_seed(0))
LOGITS = 3 * torch.nn.functional.normalize(VIEWS.flatten(1), dim=-1)[:, :5]


@pytest.mark.parametrize("kind", MAPS)
def test_every_map_is_that_of_the_calibration(kind: str) -> None:
    module, own = _exported(kind)
    expected = own(LOGITS.softmax(dim=-1).double().numpy())
    np.testing.assert_allclose(module(VIEWS).numpy(), expected, atol=3e-6)


@pytest.mark.long
@pytest.mark.parametrize("kind", MAPS)
def test_every_map_as_a_file(kind: str) -> None:
    module, own = _exported(kind)
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.onnx.export(module, (VIEWS[:2],), dynamic_shapes=({0: batch},), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: VIEWS.numpy()})
    np.testing.assert_allclose(found, own(LOGITS.softmax(dim=-1).double().numpy()), atol=3e-6)


@pytest.mark.parametrize(
    "method",
    ["o-tpt", "tda", "zero", "tpt+sals", "zero-shot+se", "o-tpt+agreement", "maple", "cocoop", "gda", "multi-label"],
)
def test_what_cannot_be_exported_is_refused_by_name(method: str) -> None:
    with pytest.raises(OtptError, match=method.replace("+", r"\+")):
        check_exportable(get_method(method))
