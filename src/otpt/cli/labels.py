"""Several labels per image from a table (``--multi-label`` of calibrate and evaluate), and ``otpt export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from otpt.cli import options as o
from otpt.cli.evaluate import EvaluationOptions
from otpt.cli.terminal import command_line, plural, print_json, print_table
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.settings import MULTI_LABEL, Settings

if TYPE_CHECKING:
    import pandas as pd

    from otpt.classifier import Classifier

_FORMATS = (".csv", ".json", ".html")
_SHOWN = 20
"""Labels that are printed."""


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


def evaluate_table(
    table: str, options: EvaluationOptions, calibration: o.CalibrationOptions, out: Path | None = None
) -> int:
    """Print the metrics of a table of images with several labels, over all and of each label, or write them."""
    from otpt.cli.metrics import records, write_csv
    from otpt.tasks.multi_label import evaluate_labels

    kind = "" if out is None else out.suffix.lower()
    if out is not None:
        o.check_output(out)
        if kind not in _FORMATS:
            raise OtptError(f"The metrics cannot be written to {str(out)!r}; expected a file {' or '.join(_FORMATS)}.")
    classifier, paths, labels = _open(table, options, calibration)
    found = evaluate_labels(classifier, paths, labels, n_bins=options.run.n_bins)
    values = {"table": table, "model": options.model.backbone, "images": len(paths), "metrics": records(found)}
    if out is None and options.run.json:
        print_json(values)
        return 0
    over_all, by_label = _tables(found)
    if out is None:
        print_table([Path(table).name, *over_all.columns[1:]], over_all.to_numpy(), width=80)
        print()
        print_table(list(by_label.columns), by_label.head(_SHOWN).to_numpy(), width=80)
        if len(by_label) > _SHOWN:
            print(f"\nThe {_SHOWN} labels of {len(by_label)} with the lowest AP; --out FILE.csv writes all.")
        return 0
    if kind == ".csv":
        write_csv(out, found)
    elif kind == ".json":
        write_atomically(out, json.dumps(values, indent=2, ensure_ascii=False).encode())
    else:
        from otpt.report.page import make_label_page, write_page

        lede = f"{len(paths)} images · {len(by_label)} labels · model {options.model.backbone}"
        write_page(out, make_label_page(Path(table).name, lede, over_all, by_label, command=command_line()))
    print(f"The metrics of {plural(len(paths), 'image')} and {plural(len(by_label), 'label')} are in {str(out)!r}.")
    return 0


def _tables(found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The metrics over all labels, and those of each label with the lowest average precision first, as strings."""
    import pandas as pd

    from otpt.metrics.multi_label import METRICS, OF_ONE_LABEL

    def interval(rows: pd.DataFrame, digits: int) -> pd.Series:
        return rows.low.map(f"{{:.{digits}f}}".format) + " … " + rows.high.map(f"{{:.{digits}f}}".format)

    whole, each = found[found.label == ""], found[found.label != ""]
    titles = [METRICS[name][0] for name in whole.metric]
    over_all = pd.DataFrame({"metric": titles, "value": whole.value.map("{:.2f}".format), "95 %": interval(whole, 2)})
    columns = {}
    for name, digits in (("map", 0), ("micro_f1", 0), ("label_ece", 1)):
        rows = each[each.metric == name].set_index("label").sort_index()
        columns[OF_ONE_LABEL[name]] = rows.value.map(f"{{:.{digits}f}}".format) + " (" + interval(rows, digits) + ")"
    order = each[each.metric == "map"].sort_values("value", kind="stable").set_index("label")
    by_label = pd.DataFrame({"images": order.images.map(str), **columns}).loc[order.index].reset_index()
    return over_all, by_label.replace("nan (nan … nan)", "–")


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
