"""Several labels per image from a table (``--multi-label`` of calibrate and evaluate), and ``otpt export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from otpt.cli import options as o
from otpt.cli.evaluate import EvaluationOptions
from otpt.cli.terminal import print_json, print_table
from otpt.errors import OtptError
from otpt.settings import MULTI_LABEL, Settings

if TYPE_CHECKING:
    from otpt.classifier import Classifier


def _open(
    table: str, options: EvaluationOptions, calibration: o.CalibrationOptions | None = None
) -> tuple[Classifier, list[Path], list[list[str]]]:
    """The classifier, images and labels of a table; its labels are the classes unless --classes names others."""
    from otpt.classifier import Classifier
    from otpt.tasks.multi_label import read_label_table, read_multi_labels

    paths, labels = read_label_table(table)
    listed = o.read_classes(options.data.classes)
    names = listed.names if listed else tuple(sorted({label for row in labels for label in row}))
    if not names:
        raise OtptError(f"The table {table!r} has no label; name the classes with --classes.")
    read_multi_labels(labels, names)  # before a large model is loaded
    methods = options.method.methods([MULTI_LABEL])
    fields = {**options.method.settings(methods), **(calibration.settings() if calibration else {})}
    settings = Settings(methods=methods, multi_label=True, classes=names, **fields)
    o.use_threads(options.run.threads)
    return Classifier(options.model.load(), settings), paths, labels


def calibrate_table(table: str, out: Path, options: EvaluationOptions) -> int:
    """Fit Platt scaling to a table of images with several labels, and write it."""
    from otpt.metrics.multi_label import METRICS

    classifier, paths, labels = _open(table, options)
    calibration = classifier.calibrate(paths, labels)
    calibration.write(out)
    if options.run.json:
        print_json({"file": str(out), "labels": calibration.labels, "reliability": calibration.reliability})
        return 0
    rows = []
    for name, (title, _) in METRICS.items():
        cells = [
            f"{value:.2f} ({low:.2f} … {high:.2f})"
            for value, low, high in (calibration.reliability[when][name] for when in ("before", "after"))
        ]
        rows.append([title, *cells])
    print_table([f"{calibration.labels} images", "before (95 %)", "after (95 %)"], rows)
    print(f"\n{calibration.map.words}. The calibration is in {str(out)!r}; use it with --calibration.")
    return 0


def evaluate_table(table: str, options: EvaluationOptions, calibration: o.CalibrationOptions) -> int:
    """Print the metrics of a table of images with several labels."""
    from otpt.metrics.multi_label import METRICS
    from otpt.tasks.multi_label import evaluate_labels

    found = evaluate_labels(*_open(table, options, calibration))
    if options.run.json:
        print_json(found.to_dict(orient="index"))
    else:
        rows = [
            [METRICS[name][0], f"{row.value:.2f}", f"{row.low:.2f} … {row.high:.2f}"] for name, row in found.iterrows()
        ]
        print_table([Path(table).name, "value", "95 %"], rows)
    return 0


def export(
    *,
    out: Annotated[Path, o.out("the ONNX file to write")],
    classes: o.Classes = None,
    methods: Annotated[str, o.methods("zero-shot, confident-half, or another that tunes nothing")] = "zero-shot",
    method: o.MethodOptions = o.MethodOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
) -> int:
    """Write a classifier with fixed classes as one ONNX file: image tower, text features, aggregation and calibration.

    otpt export --classes cat dog --backbone ViT-B-32/openai --out pets.onnx
    """
    o.check_output(out)
    listed = o.read_classes(classes)
    if listed is None:
        raise OtptError("No class names were given; name at least two after --classes, or write --classes @FILE.")
    from otpt.classifier import Classifier
    from otpt.tasks.export import check_exportable

    chosen = method.methods([methods])
    check_exportable(chosen[0])
    settings = Settings(methods=chosen, classes=listed.names, **method.settings(chosen), **calibration.settings())
    Classifier(model.load(), settings).export(out)
    print(f"The model is in {str(out)!r}: views (B, V, 3, S, S) to probabilities (B, {len(listed.names)}).")
    return 0
