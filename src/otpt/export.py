"""A classifier as one ONNX file: image tower, text features, aggregation over views, calibration.

    clf.export("pets.onnx")

| name | shape | |
|---|---|---|
| ``views`` | (B, V, 3, S, S) | input: normalised pixels of the views, the clean view first |
| ``text_features`` | (C, D) | input with a default, those of the exported classes; others replace the labels |
| ``probabilities`` | (B, C) | output |

Aggregations and calibration maps in the file are those of predictions, traced. A calibration belongs to its classes, so
a calibrated file has no input ``text_features``. The metadata (``otpt``, JSON) holds the class names, the preprocessing
and the method. Methods that tune or use other images are refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones import Backbone
from otpt.calibration import Calibrated
from otpt.calibration.maps import CalibrationMap
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.methods import MULTI_LABEL, Method, Task
from otpt.methods import Protocol as PredictionProtocol
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.methods.preparation import temperature_family
from otpt.methods.stages import Stages
from otpt.registry import AGGREGATIONS, CLEAN, CONTEXT, IMAGE, NONE

EXPORTABLE = (CLEAN, "mean-probability", "mean-logit", "mean-feature", "tsallis", "view-weights")
"""Aggregations that can be exported; the others decide in Python what they do next."""

_TOLERANCE = 1e-4
"""Largest accepted difference of probabilities between onnxruntime and torch."""


class ExportableClassifier(Protocol):
    """What :func:`export_onnx` uses of a :class:`otpt.Classifier`."""

    @property
    def backbone(self) -> Backbone: ...

    @property
    def calibrations(self) -> Mapping[str, Calibrated]: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def method(self) -> Method: ...

    @property
    def protocol(self) -> PredictionProtocol: ...

    @property
    def task(self) -> Task: ...

    @property
    def text_features(self) -> Tensor: ...


class Description(TypedDict):
    """Metadata of an ONNX file."""

    backbone: str
    fingerprint: str
    classes: list[str]
    groups: dict[str, list[int]]
    method: str
    views: int
    calibrated: bool
    preprocessing: dict[str, object]


def export_onnx(classifier: ExportableClassifier, path: str | Path) -> None:
    """Write a classifier as an ONNX file, after comparing onnxruntime with torch on random views.

    Args:
        classifier: a classifier whose classes are set and whose method does not tune; its calibration is part of the
            file. Prediction sets, abstention and rejection are not.
        path: path of the file.
    """
    _check_installed()
    graph = classifier_graph(classifier)
    facts = describe(classifier)
    text_features = classifier.text_features.float().cpu()
    size = classifier.backbone.preprocessing.size
    views = torch.randn(2, facts["views"], 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        data = to_onnx(graph, views, text_features, facts)
    except (RuntimeError, ValueError, TypeError) as error:  # the tower's code is not ours
        name = type(getattr(classifier.backbone.visual, "model", classifier.backbone.visual)).__name__
        raise OtptError(
            f"The image tower of {classifier.backbone.name!r} ({name}) cannot be translated to ONNX by torch: its "
            f"operations depend on the number of images, or have no translation ({type(error).__name__}); use another "
            "backbone."
        ) from error
    with torch.inference_mode():
        expected = graph(views[:1], text_features).numpy()
    difference = float(np.abs(_run(data, views[:1]) - expected).max())
    if not difference <= _TOLERANCE:
        raise OtptError(f"The exported model differs from torch by {difference:g}; it was not written.")
    write_atomically(Path(path), data)


def describe(classifier: ExportableClassifier) -> Description:
    """Return the metadata of the file: class names, groups, preprocessing, method."""
    grouping = classifier.task.groups
    groups = {} if grouping is None else grouping.members
    recipe = classifier.protocol.recipe_for(classifier.method)
    return {
        "backbone": classifier.backbone.name,
        "fingerprint": classifier.backbone.fingerprint,
        "classes": list(classifier.class_names),
        "groups": {name: list(members) for name, members in groups.items()},
        "method": classifier.method.name,
        "views": 1 if recipe is None else recipe.n_views,
        "calibrated": classifier.method.name in classifier.calibrations,
        "preprocessing": classifier.backbone.preprocessing.facts(),
    }


def check_exportable(method: Method, protocol: PredictionProtocol) -> None:
    """Raise for a method that has no fixed function of the views."""
    reason = ""
    if method.adapt == MULTI_LABEL:
        reason = "several labels are predicted from crops of the image"
    elif method.tunes or method.scope != IMAGE or method.adapt != CONTEXT:
        reason = "it adapts to the images that it sees"
    elif not (method.preparation.shares_texts and method.preparation.one_text) or method.prepared.needs_image:
        reason = f"its prompt {method.init!r} is not one text per class for all images"
    elif method.init in EXAMPLE_INITS:
        reason = f"its classes are example images ({method.init!r}), not texts"
    elif method.gate != NONE:
        reason = f"its gate {method.gate!r} decides image by image"
    elif method.calibrate not in (NONE, "temperature"):
        reason = f"its calibrator {method.calibrate!r} depends on the image"
    elif method.aggregate not in EXPORTABLE:
        reason = f"its aggregation {method.aggregate!r} is none of {', '.join(EXPORTABLE)}"
    if reason:
        raise OtptError(
            f"The method {method.name!r} cannot be exported: {reason}; take one without, such as 'confident-half'."
        )
    default = type(protocol)()
    other = [name for name in protocol.recorded() if getattr(protocol, name) != getattr(default, name)]
    if other:
        raise OtptError(f"An ONNX file has no {other[0]}, which is {getattr(protocol, other[0])!r}; export without it.")
    recipe = protocol.recipe_for(method)
    if recipe is not None and recipe.rounds:
        raise OtptError(
            f"An ONNX file has a fixed number of views, but the budget of {recipe.n_views} depends on the image; set "
            "views instead."
        )


def classifier_graph(classifier: ExportableClassifier) -> ClassifierGraph:
    """Return the classifier as a module on the CPU."""
    method = classifier.method
    backbone = classifier.backbone
    check_exportable(method, classifier.protocol)
    if backbone.visual is None:
        raise OtptError(f"The backbone {backbone.name!r} has no image tower that can be exported.")
    calibrated = classifier.calibrations.get(method.name)
    return ClassifierGraph(
        deepcopy(backbone.visual).float().cpu(),
        Stages(method, classifier.protocol, temperature_family(backbone)),
        backbone.logit_scale,
        backbone.logit_bias,
        None if calibrated is None else calibrated.calibration.map,
    ).eval()


class ClassifierGraph(nn.Module):
    """Module from views (B, V, 3, S, S) and text features (C, D) of any norm to probabilities (B, C).

    Args:
        visual: image tower.
        stages: stages of a method without adaptation; see :func:`check_exportable`.
        logit_scale: factor of the cosines.
        logit_bias: constant that is added to the logits.
        calibration_map: calibration map of the probabilities, or None.
    """

    def __init__(
        self,
        visual: nn.Module,
        stages: Stages,
        logit_scale: float,
        logit_bias: float,
        calibration_map: CalibrationMap | None = None,
    ) -> None:
        super().__init__()
        self.visual = visual
        self.stages = stages
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        self.calibration_map = calibration_map

    def forward(self, views: Tensor, text_features: Tensor) -> Tensor:
        encoded = self.visual(views.flatten(0, 1))
        encoded = encoded[0] if isinstance(encoded, tuple) else encoded
        features = F.normalize(encoded, dim=-1).unflatten(0, views.shape[:2])
        texts = F.normalize(text_features, dim=-1)
        probabilities: Tensor = torch.vmap(self._aggregate, in_dims=(0, None))(features, texts)
        if self.calibration_map is None:
            return probabilities
        return self.calibration_map.of_tensor(probabilities).float()

    def _aggregate(self, features: Tensor, texts: Tensor) -> Tensor:
        """Return the probabilities (C,) of one image, given unit features (V, D) and (C, D)."""
        method = self.stages.method
        zero_shot = self.logit_scale * features @ texts.mT + self.logit_bias
        logits = zero_shot if method.calibrate == NONE else zero_shot / self.stages.temperature
        if method.aggregate == CLEAN:
            return logits[0].softmax(dim=-1)
        arguments = {
            "logits": logits,
            "probabilities": logits.softmax(dim=-1),
            "uncalibrated": zero_shot,
            "zero_shot": zero_shot,
            "features": features,
            "text_features": texts,
            "adapted_text_features": texts,
            "logit_scale": self.logit_scale,
        }
        probabilities = AGGREGATIONS[method.aggregate].call(arguments, self.stages.numbers)
        assert isinstance(probabilities, Tensor)
        return probabilities / probabilities.sum()


def to_onnx(graph: nn.Module, views: Tensor, text_features: Tensor, facts: Description) -> bytes:
    """Trace a module as an ONNX model for any number of images.

    Args:
        graph: the module.
        views: example of the views, (2, V, 3, S, S).
        text_features: text features (C, D) of the classes, the default of an input or, if calibrated, a constant.
        facts: metadata of the model.
    """
    import onnx

    batch = torch.export.Dim("batch", min=1, max=4096)
    classes = torch.export.Dim("classes", min=1, max=1_000_000)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            graph,
            (views, text_features),
            dynamic_shapes=({0: batch}, None if facts["calibrated"] else {0: classes}),
            strict=False,
        ).run_decompositions({torch.ops.aten.sort.stable: _sort})
        exported = torch.onnx.export(
            program,
            input_names=["views", "text_features"],
            output_names=["probabilities"],
            dynamo=True,
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    model.graph.initializer.append(onnx.numpy_helper.from_array(text_features.numpy(), "text_features"))
    if facts["calibrated"]:
        model.graph.input.remove(next(each for each in model.graph.input if each.name == "text_features"))
    onnx.helper.set_model_props(model, {"otpt": json.dumps(facts, ensure_ascii=False)})
    return bytes(model.SerializeToString())


def _sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Replace a stable sort, which torch does not translate, by a sort: ONNX keeps the order of equal values."""
    return torch.sort(x, dim, descending)


def _run(data: bytes, views: Tensor) -> npt.NDArray[np.float32]:
    """Return the probabilities (B, C) of an ONNX model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warning that the text features can be replaced
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"views": views.numpy()})
    return np.asarray(probabilities)


def _check_installed() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            raise OtptError(f"ONNX files need {name}; install otpt[onnx].")
