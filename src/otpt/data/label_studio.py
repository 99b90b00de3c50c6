"""Labels that people gave in Label Studio: its exports as JSON, JSON_MIN and CSV.

Of a task, the last annotation counts that was not skipped (or the one marked as ground truth); tasks without one are
left out, with a warning. Images are found by the path that ``otpt predict --export label-studio`` put into the task, or
by their address in Label Studio.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, cast
from urllib.parse import unquote

from otpt.arguments import checked
from otpt.data.classes import ClassList
from otpt.data.dataset import Dataset
from otpt.data.own import YES_OR_NO, ReaderTable, origin_of, own_dataset, read_table, resolve_labels
from otpt.data.sources import is_remote, row_image
from otpt.errors import OtptError, cannot_read
from otpt.files import parse_json, read_text
from otpt.labels import read_label_sets

IMAGE = "image"
"""Name of the image in tasks and in the labelling interface."""
PATH = "path"
"""Key of a task's data that holds the path of the image."""
CONTROL = "label"
"""Name of the choices in the labelling interface."""
YES, NO = "yes", "no"
"""Choices for a single class."""
LOCAL_FILES = "/data/local-files/?d="
"""Begin of addresses of files that Label Studio serves from a folder."""

VERSION = "otpt "
"""Begin of the model version of predictions in tasks."""
UNCERTAINTY = "uncertainty"
"""Column by which rows are sorted."""

_UPLOADED = re.compile(r"/data/upload/(?:\d+/)?(?:[0-9a-f]{8}-)?(?P<name>[^/]+)")
_FACTS = {"annotator", "annotation_id", "created_at", "updated_at", "lead_time", "was_cancelled", "agreement", "id"}
"""Columns of a CSV export that are neither data nor labels."""


class LabelledTask(NamedTuple):
    """Task with the data of its image, and what was chosen by control; None if nobody has labelled it."""

    data: Mapping[str, object]
    choices: Mapping[str, Sequence[str]] | None


def is_label_studio(path: Path) -> bool:
    """Return whether a file is an export of Label Studio, by its suffix or its columns."""
    if path.suffix.lower() == ".json":
        return True
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    try:
        with path.open(encoding="utf-8-sig") as lines:
            head = {cell.strip(' "\n').lower() for cell in re.split(r"[,\t]", lines.readline())}
    except (OSError, ValueError):
        return False  # reported by the reader of tables
    return {"annotation_id", "lead_time"} <= head


def is_ranked(path: Path) -> bool:
    """Return whether labelled images were ranked by their uncertainty: tasks or rows that otpt wrote in that order."""
    if not path.is_file() or path.suffix.lower() not in (".json", ".csv", ".tsv", ".parquet"):
        return False
    if path.suffix.lower() != ".json":
        table = read_table(path)
        return UNCERTAINTY in table or _has_ranked_images(table.to_dict("records"))
    try:
        tasks = parse_json(read_text(path, "export of Label Studio"))
    except ValueError:
        return False  # reported by the reader of exports
    rows = [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
    data = [row["data"] if isinstance(row.get("data"), dict) else row for row in rows]
    return any(map(_has_our_prediction, rows)) or _has_ranked_images(data)


def _has_ranked_images(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a row has the image and the path as in tasks of otpt, which JSON_MIN and CSV keep."""
    return any(PATH in row and str(row.get(IMAGE, "")).startswith(LOCAL_FILES) for row in rows)


def _has_our_prediction(task: Mapping[str, object]) -> bool:
    predictions = task.get("predictions")
    return any(
        isinstance(prediction, dict) and str(prediction.get("model_version", "")).startswith(VERSION)
        for prediction in (predictions if isinstance(predictions, list) else [])
    )


@checked
def label_studio_dataset(
    path: str | Path, classes: ClassList | None = None, *, root: str | Path | None = None, multi_label: bool = False
) -> Dataset:
    """Read an export of Label Studio with one choice per image.

    Args:
        path: ``.json`` file (JSON or JSON_MIN) or ``.csv`` file of Label Studio's export.
        classes: class list; by default, the labels in alphabetical order.
        root: further folder in which images are looked for, next to that of the file and the current one.
        multi_label: whether an image may have any number of choices; so it is with a single class.
    """
    path, root = Path(path), None if root is None else Path(root)
    tasks = list(_read_csv(path) if path.suffix.lower() != ".json" else _read_json(path))
    labelled = [(task.data, choices) for task in tasks if (choices := _chosen(task, path)) is not None]
    if not labelled:
        raise OtptError(f"Nobody has labelled an image in {str(path)!r}; expected an export of annotated tasks.")
    if len(labelled) < len(tasks):
        warnings.warn(
            f"{len(tasks) - len(labelled)} of {len(tasks)} tasks in {str(path)!r} have no labels and are left out.",
            stacklevel=3,
        )
    paths = _find_images([_place_of(data, path) for data, _ in labelled], path, root)
    readers = ReaderTable(tuple(row_image({PATH: file}, PATH, file, "").read for file in paths))
    chosen = [choices for _, choices in labelled]
    origin = origin_of(path)
    if multi_label or (classes is not None and len(classes) == 1):
        return _several_labels(path, classes, chosen, paths, readers)
    wrong = next((number for number, choices in enumerate(chosen) if len(choices) != 1), None)
    if wrong is not None:
        raise OtptError(
            f"The image {paths[wrong]!r} in {str(path)!r} has {len(chosen[wrong])} labels; expected one, or "
            "--multi-label."
        )
    listed, labels = resolve_labels([choices[0] for choices in chosen], classes, f"The export {str(path)!r}")
    return own_dataset(path.stem, listed, paths, labels, readers, origin=origin)


def _several_labels(
    path: Path,
    classes: ClassList | None,
    chosen: Sequence[Sequence[str]],
    paths: Sequence[str],
    readers: ReaderTable,
) -> Dataset:
    """Return a data set with any number of labels per image; those of a single class are yes or no."""
    names = tuple(sorted({label for choices in chosen for label in choices}))
    listed = classes or ClassList(names, names)
    rows: Sequence[object] = chosen
    answers = [YES_OR_NO.get(label.casefold()) for choices in chosen for label in choices]
    if len(listed) == 1 and None not in answers:
        rows = [any(YES_OR_NO[label.casefold()] for label in choices) for choices in chosen]
    present = read_label_sets(rows, listed.names)
    label_sets = [tuple(place for place, there in enumerate(row) if there) for row in present.tolist()]
    first = [labels[0] if labels else 0 for labels in label_sets]
    dataset = own_dataset(path.stem, listed, paths, first, readers, origin=origin_of(path))
    dataset.label_sets = label_sets
    return dataset


# ---- formats --------------------------------------------------------------------------------------------------------


def _read_json(path: Path) -> Iterator[LabelledTask]:
    """Yield the tasks of a JSON or JSON_MIN export."""
    try:
        tasks = parse_json(read_text(path, "export of Label Studio"))
    except ValueError as error:
        if isinstance(error, OtptError):
            raise
        raise cannot_read("export of Label Studio", path, error) from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise OtptError(f"{str(path)!r} is no export of Label Studio; expected a list of tasks.")
    for task in cast("list[dict[str, object]]", tasks):
        if "annotations" in task or "predictions" in task:
            data = task.get("data")
            yield LabelledTask(data if isinstance(data, dict) else {}, _annotated(task.get("annotations")))
        else:
            yield LabelledTask(
                task, _controls({name: task[name] for name in task if name not in {IMAGE, PATH, *_FACTS}})
            )


def _annotated(annotations: object) -> Mapping[str, Sequence[str]] | None:
    """Return the choices of the last annotation that was not skipped, by control."""
    usable = [
        annotation
        for annotation in (annotations if isinstance(annotations, list) else [])
        if isinstance(annotation, dict) and not annotation.get("was_cancelled")
    ]
    usable.sort(key=lambda annotation: (bool(annotation.get("ground_truth")), str(annotation.get("updated_at", ""))))
    if not usable:
        return None
    chosen: dict[str, Sequence[str]] = {}
    results = usable[-1].get("result")
    for result in results if isinstance(results, list) else []:
        if isinstance(result, dict) and result.get("type") == "choices":
            chosen[str(result.get("from_name", CONTROL))] = _texts(result.get("value"))
    return chosen


def _read_csv(path: Path) -> Iterator[LabelledTask]:
    """Yield the tasks of a CSV or TSV export."""
    for row in read_table(path).to_dict("records"):
        data = {str(name): value for name, value in row.items()}
        skipped = str(data.get("was_cancelled", "")).casefold() == "true"
        cells = {name: value for name, value in data.items() if name not in {IMAGE, PATH, *_FACTS}}
        yield LabelledTask(data, None if skipped else _controls(cells))


def _controls(cells: Mapping[str, object]) -> Mapping[str, Sequence[str]]:
    """Return the choices in the cells of a row: a text, or JSON with the key choices."""
    return {name: _texts(value) for name, value in cells.items()}


def _texts(value: object) -> Sequence[str]:
    if isinstance(value, str) and value[:1] == "{":
        with suppress(ValueError):  # a label that begins with a brace
            value = json.loads(value)
    if isinstance(value, dict):
        value = value.get("choices")
    if isinstance(value, list):
        return [str(item) for item in value]
    return [value] if isinstance(value, str) and value else []


def _chosen(task: LabelledTask, path: Path) -> Sequence[str] | None:
    """Return the choices of a task in the control "label", "choice", or the only one; None without a label."""
    if task.choices is None:
        return None
    for name in (CONTROL, "choice"):
        if name in task.choices:
            return task.choices[name]
    if len(task.choices) > 1:
        raise OtptError(
            f"{str(path)!r} has the choices {', '.join(map(repr, task.choices))}; expected one of them to be called "
            f"{CONTROL!r} in the labelling interface."
        )
    return next(iter(task.choices.values()), None)


# ---- images ---------------------------------------------------------------------------------------------------------


def _place_of(data: Mapping[str, object], path: Path) -> str:
    """Return the path or the address of a task's image."""
    place = data.get(PATH) or data.get(IMAGE)
    if not isinstance(place, str) or not place:
        raise OtptError(f"A task in {str(path)!r} has no image; expected the keys {PATH!r} or {IMAGE!r} in its data.")
    if place.startswith(LOCAL_FILES):
        return unquote(place.removeprefix(LOCAL_FILES), errors="surrogateescape")
    uploaded = _UPLOADED.fullmatch(place)
    return unquote(uploaded["name"]) if uploaded else place


def _find_images(places: Sequence[str], path: Path, root: Path | None) -> list[str]:
    """Return the files of images, which are looked for in a few folders; addresses stay as they are."""
    folders = [Path(), path.parent, *([root] if root is not None else []), Path("/")]
    found: list[str] = []
    for place in places:
        if is_remote(place):
            found.append(place)
            continue
        candidates = [folder / place for folder in folders]
        file = next((candidate for candidate in candidates if os.path.isfile(candidate)), None)
        if file is None:
            raise OtptError(
                f"The image {place!r} of {str(path)!r} is not in {', '.join(repr(str(folder)) for folder in folders)}; "
                "put it there, or name its folder with --data."
            )
        found.append(PurePosixPath(file).as_posix())
    return found
