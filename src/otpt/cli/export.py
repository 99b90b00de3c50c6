"""``otpt export``: a classifier as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from otpt.classifier import Classifier
from otpt.cli import options as o
from otpt.errors import OtptError
from otpt.export import check_exportable


def export(
    *,
    out: Annotated[Path, o.out("the ONNX file to write")],
    classes: o.Classes = None,
    methods: Annotated[str, o.methods("zero-shot, confident-half, or another that tunes nothing")] = "zero-shot",
    templates: o.Texts = None,
    calibration: o.Calibrations = (),
    method: o.SettingOptions = o.SettingOptions(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Write a classifier with fixed classes as one ONNX file: image tower, text features, aggregation and calibration.

    otpt export --classes cat dog --backbone ViT-B-32/openai --out pets.onnx
    """
    class_list = o.read_classes(classes)
    if class_list is None:
        raise OtptError("No class names were given; name at least two after --classes, or write --classes @FILE.")
    method.load_plugins()
    values: dict[str, object] = {"methods": (methods,), "calibrations": calibration}
    if templates is not None:
        values["templates"] = o.read_templates(templates)
    task, protocol, decision = method.read_records(class_list, values)
    check_exportable(protocol.methods[0], protocol)
    Classifier(model.load(), task=task, protocol=protocol, decision=decision).export(out)
    print(f"The model is in {str(out)!r}: views (B, V, 3, S, S) to probabilities (B, {len(class_list.names)}).")
    return 0
