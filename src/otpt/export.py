"""A classifier with fixed classes as one ONNX file: image tower, text features, aggregation over views, calibration.

    clf.export("pets.onnx")                      # input "views" (B, V, 3, S, S), output "probabilities" (B, C)

The file's metadata (``otpt``, JSON) holds the class names, the preprocessing and the method. Methods that tune or use
other images are refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, fixed_temperature
from otpt.calibration.maps import CalibrationMap
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.methods import MULTI_LABEL, Method, Task
from otpt.methods import Protocol as PredictionProtocol
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.objectives import view_entropies
from otpt.views import ViewRecipe

AGGREGATIONS = ("clean", "mean-probability", "mean-logit", "mean-feature")
"""Aggregations that can be exported."""
MAPS = ("identity", "temperature", "beta", "isotonic", "bias", "vector")
"""Calibration maps that can be exported."""

_TINY = float(np.finfo(np.float32).tiny)
_BISECTIONS = 40  # float32 has 24 bits


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
    def recipe(self) -> ViewRecipe: ...

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
            file.
        path: path of the file.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise OtptError(f"ONNX files need {error.name}; install otpt[onnx].") from None
    model = _module(classifier)
    size = classifier.backbone.preprocessing.size
    views = torch.randn(2, 3, 3, size, size, generator=torch.Generator().manual_seed(0))
    batch = torch.export.Dim("batch", min=1, max=4096)
    count = torch.export.Dim("views", min=1, max=4096)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (views,),
            input_names=["views"],
            output_names=["probabilities"],
            dynamic_shapes=({0: batch, 1: count},),
            dynamo=True,
            verbose=False,
        )
        expected = model(views).numpy()
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"otpt": json.dumps(describe(classifier), ensure_ascii=False)})
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    difference = float(np.abs(session.run(None, {"views": views.numpy()})[0] - expected).max())
    if not difference <= 1e-4:
        raise OtptError(f"The exported model differs from torch by {difference:g}; it was not written.")
    write_atomically(Path(path), data)


def describe(classifier: ExportableClassifier) -> Description:
    """Return the metadata of the file: class names, groups, preprocessing, method."""
    grouping = classifier.task.groups
    groups = {} if grouping is None else grouping.members
    return {
        "backbone": classifier.backbone.name,
        "fingerprint": classifier.backbone.fingerprint,
        "classes": list(classifier.class_names),
        "groups": {name: list(members) for name, members in groups.items()},
        "method": classifier.method.name,
        "views": 1 if classifier.method.aggregate == "clean" else classifier.recipe.n_views,
        "calibrated": classifier.method.name in classifier.calibrations,
        "preprocessing": asdict(classifier.backbone.preprocessing),
    }


def check_exportable(method: Method) -> None:
    """Raise for a method that has no fixed function of the views."""
    reason = ""
    if method.adapt == MULTI_LABEL:
        reason = "several labels are predicted from crops of the image"
    elif method.tunes or method.scope != "image" or method.adapt != "context":
        reason = "it adapts to the images that it sees"
    elif not (method.preparation.shares_texts and method.preparation.one_text) or method.prepared.needs_image:
        reason = f"its prompt {method.init!r} is not one text per class for all images"
    elif method.init in EXAMPLE_INITS:
        reason = f"its classes are example images ({method.init!r}), not texts"
    elif method.gate != "none":
        reason = f"its gate {method.gate!r} decides image by image"
    elif method.calibrate not in ("none", "temperature"):
        reason = f"its calibrator {method.calibrate!r} depends on the image"
    elif method.aggregate not in AGGREGATIONS:
        reason = f"its aggregation {method.aggregate!r} is none of {', '.join(AGGREGATIONS)}"
    if reason:
        raise OtptError(
            f"The method {method.name!r} cannot be exported: {reason}; take one without, such as 'confident-half'."
        )


def _module(classifier: ExportableClassifier) -> nn.Module:
    """Return the classifier as a module on the CPU."""
    method = classifier.method
    backbone = classifier.backbone
    check_exportable(method)
    if backbone.visual is None:
        raise OtptError(f"The backbone {backbone.name!r} has no image tower that can be exported.")
    temperature = 1.0
    if method.calibrate != "none":
        temperature = method.temperature or fixed_temperature(backbone.family)
    calibration_map = CalibrationMap("identity")
    if method.name in classifier.calibrations:
        calibration_map = classifier.calibrations[method.name].calibration.map
    return Exported(
        deepcopy(backbone.visual).float().cpu().eval(),
        classifier.text_features.float().cpu() * backbone.logit_scale,
        backbone.logit_bias,
        method,
        temperature=temperature,
        numbers={**method.defaults, **method.settings_for(*classifier.protocol.place)},
        map=calibration_map,
    ).eval()


class Exported(nn.Module):
    """Module from normalised views (B, V, 3, S, S) to probabilities (B, C).

    Args:
        visual: image tower.
        texts: unit text features times the logit scale, (C, D).
        bias: constant that is added to the logits.
        method: a method without adaptation; see :func:`check_exportable`.
        temperature: divisor of the logits.
        numbers: settings of the method's aggregation.
        map: calibration map of the probabilities.
    """

    texts: Tensor
    map_temperature: Tensor
    map_a: Tensor
    map_b: Tensor
    map_c: Tensor
    map_x: Tensor
    map_y: Tensor
    map_slopes: Tensor
    map_biases: Tensor

    def __init__(
        self,
        visual: nn.Module,
        texts: Tensor,
        bias: float,
        method: Method,
        *,
        temperature: float,
        numbers: Mapping[str, object],
        map: CalibrationMap,
    ) -> None:
        super().__init__()
        self.visual = visual
        self.bias = bias
        self.aggregate = method.aggregate
        self.temperature = temperature
        fraction = numbers.get("mean_fraction", 1.0)
        clean_weight = numbers.get("clean_weight", 0.0)
        assert isinstance(fraction, (int, float))
        assert isinstance(clean_weight, (int, float))
        self.fraction = float(fraction)
        self.clean_weight = float(clean_weight)
        self.kind = map.kind
        self.register_buffer("texts", texts)
        for name in ("temperature", "a", "b", "c", "x", "y", "slopes", "biases"):
            values = map.parameters.get(name, 0.0)
            self.register_buffer(f"map_{name}", torch.tensor(values, dtype=torch.float32))

    def forward(self, views: Tensor) -> Tensor:
        batch, count = views.shape[:2]
        encoded = self.visual(views.flatten(0, 1))
        encoded = encoded[0] if isinstance(encoded, tuple) else encoded
        features = F.normalize(encoded, dim=-1).unflatten(0, (batch, count))
        return self._mapped(self._aggregated(features))

    def _logits(self, features: Tensor) -> Tensor:
        return (features @ self.texts.mT + self.bias) / self.temperature

    def _aggregated(self, features: Tensor) -> Tensor:
        logits = self._logits(features)
        if self.aggregate == "clean":
            return logits[:, 0].softmax(dim=-1)
        weights = self._weights(logits * self.temperature)
        w = self.clean_weight
        if self.aggregate == "mean-probability":
            p = logits.softmax(dim=-1)
            return w * p[:, 0] + (1 - w) * (weights * p).sum(dim=1)
        if self.aggregate == "mean-logit":
            return (w * logits[:, 0] + (1 - w) * (weights * logits).sum(dim=1)).softmax(dim=-1)
        total = F.normalize((weights * features).sum(dim=1), dim=-1)
        mixed = F.normalize(total + w / (1 - w) * features[:, 0], dim=-1)
        return (mixed @ self.texts.mT + self.bias).softmax(dim=-1)

    def _weights(self, logits: Tensor) -> Tensor:
        """Return weights (B, V, 1): 1/k for the k = max(1, int(V·fraction)) views of lowest entropy, else 0."""
        ranks = view_entropies(logits).argsort(dim=1).argsort(dim=1)
        views = torch.ones_like(ranks).sum(dim=1, keepdim=True)
        k = (views.double() * self.fraction).floor().clamp_min(1)
        return ((ranks < k) / k).float()[..., None]

    def _mapped(self, p: Tensor) -> Tensor:
        """Apply the calibration map; see :mod:`otpt.calibration.maps`."""
        if self.kind == "identity":
            return p
        logs = p.clamp_min(_TINY).log()
        if self.kind == "temperature":
            return (logs / self.map_temperature).softmax(dim=-1)
        if self.kind in ("bias", "vector"):
            return (self.map_slopes * logs + self.map_biases).softmax(dim=-1)
        largest = p.amax(dim=-1)
        if self.kind == "beta":
            rest = (p.sum(dim=-1) - largest).clamp_min(1e-12)
            wanted = torch.sigmoid(self.map_a * largest.log() - self.map_b * rest.log() + self.map_c)
        else:
            wanted = self._interpolated(largest)
        return _with_confidence(logs, wanted)

    def _interpolated(self, at: Tensor) -> Tensor:
        """Interpolate linearly between the corners (x, y), constant outside."""
        x, y = self.map_x, self.map_y
        widths = (x[1:] - x[:-1]).clamp_min(_TINY)
        parts = ((at[:, None] - x[:-1]) / widths).clamp(0, 1)
        return y[0] + (parts * (y[1:] - y[:-1])).sum(dim=-1)


def _with_confidence(logs: Tensor, wanted: Tensor) -> Tensor:
    """Compute softmax(log p/τ) with the ``wanted`` largest entry, by bisection of log 1/τ."""
    gaps = logs - logs.amax(dim=-1, keepdim=True)
    target = wanted.clamp_min(1.02 / logs.shape[-1])
    low = torch.full_like(wanted, float(np.log(1e-3)))
    high = torch.full_like(wanted, float(np.log(1e3)))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        short = 1.0 / (middle.exp()[:, None] * gaps).exp().sum(dim=-1) < target
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return (((low + high) / 2).exp()[:, None] * gaps).softmax(dim=-1)
