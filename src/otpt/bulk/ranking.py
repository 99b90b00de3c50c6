"""Predictions with the least certain images first, for people who label: as rows, or as tasks of Label Studio.

Rows are first written in the order of the images to ``OUT.rows.jsonl``, which a repeated call continues; the sorted
output is made of them at the end, and again when images are added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, Unpack

from otpt.arguments import checked
from otpt.bulk.jobs import ClassifierJob, Item
from otpt.bulk.label_studio import LabelStudio
from otpt.bulk.prediction import BulkResult, Images, Monitor, open_images, predict
from otpt.bulk.rows import Row
from otpt.bulk.storage import Storage
from otpt.bulk.writers import RowFormat, writer_of
from otpt.classifier import Classifier
from otpt.data.sources import is_remote
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.methods import Method
from otpt.workers import Pool

FORMATS = (".csv", ".jsonl", ".parquet")
TASKS = ".json"
"""Suffix of tasks of Label Studio."""
_ROWS = ".rows.jsonl"


class PredictOptions(TypedDict, total=False):
    """Further keywords of :func:`otpt.bulk.predict`."""

    methods: Sequence[str | Method] | None
    workers: int | None
    pool: Pool | str | None
    top: int | None
    overwrite: bool
    progress: Monitor | None


class RankedImage(NamedTuple):
    """Rows of one image, and how uncertain the first of them is; None if the image could not be read."""

    uncertainty: float | None
    rows: Sequence[Row]


@checked
def rank(
    classifier: Classifier | ClassifierJob,
    source: Images,
    out: str | os.PathLike[str],
    *,
    export: Literal["label-studio"] | None = None,
    **options: Unpack[PredictOptions],
) -> BulkResult:
    """Predict images and write them with the least certain ones first, by the first method.

    The uncertainty of an image is one minus its confidence; with a single label or several independent ones, it is 1 if
    the probability of a label is at the threshold, and 0 if all are as far from it as possible. Images that could not
    be read come last.

    Args:
        classifier: classifier with classes, or how to make it.
        source: images, as for :func:`otpt.bulk.predict`.
        out: local ``.csv``, ``.jsonl`` or ``.parquet`` file; ``.json`` for Label Studio.
        export: "label-studio" for tasks with predictions, and ``.xml`` with the labelling interface next to them.
        options: further keywords of :func:`otpt.bulk.predict`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import otpt
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for color in ("red", "blue"):
        ...     Image.new("RGB", (32, 32), color).save(folder / f"{color}.png")
        >>> clf = otpt.load("pocket", method="zero-shot", device="cpu", classes=["cat", "dog"])
        >>> rank(clf, folder, folder / "labels.csv").images
        2
    """
    path = check_ranked(out, export)
    methods = options.get("methods")
    if isinstance(classifier, ClassifierJob) and methods is not None:
        raise OtptError("methods were given with a job; expected a classifier, or a job with these methods.")
    job = classifier if isinstance(classifier, ClassifierJob) else ClassifierJob.of(classifier, methods)
    images = open_images(source)
    if export is not None:
        images = _check_files(images)
    if os.path.exists(path) and not os.path.exists(path + _ROWS) and not options.get("overwrite"):
        raise OtptError(
            f"{path!r} exists and is not of a prediction job; choose another output, or start it again (--overwrite, "
            "overwrite=True)."
        )
    options["methods"] = None  # they are in the job
    result = predict(job, images, path + _ROWS, ranked=True, **options)
    if not result.rows:  # nothing is written without images, as by predict
        return replace(result, path=path)
    ranked = read_ranked(path + _ROWS)
    if export is None:
        _write(path, ranked, options.get("top"))
    else:
        tasks = LabelStudio(job.task, Path.cwd())
        answered = [image.rows[0] for image in ranked if image.uncertainty is not None]
        write_atomically(Path(path), tasks.tasks_json(answered))
        write_atomically(Path(path).with_suffix(".xml"), tasks.interface())
    return replace(result, path=path)


@checked
def check_ranked(out: str | os.PathLike[str], export: str | None) -> str:
    """Return the path of a sorted output as text; ``OtptError`` if it cannot be written."""
    path = os.fspath(out)
    suffixes = FORMATS if export is None else (TASKS,)
    if is_remote(path) or os.path.splitext(path)[1].lower() not in suffixes:
        what = "Sorted predictions" if export is None else "Tasks of Label Studio"
        raise OtptError(f"{what} cannot be written to {path!r}; expected a local {' or '.join(suffixes)} file.")
    return path


def read_ranked(path: str) -> list[RankedImage]:
    """Return the rows of a file of JSON lines by image, the least certain image first."""
    images = [RankedImage(_uncertainty_of(rows[0]), rows) for rows in _rows_by_image(path)]
    readable = [image for image in images if image.uncertainty is not None]
    readable.sort(key=lambda image: -(image.uncertainty or 0.0))  # stable: ties stay in the order of the images
    return [*readable, *(image for image in images if image.uncertainty is None)]


def _rows_by_image(path: str) -> Iterator[list[Row]]:
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        image: list[Row] = []
        for line in lines:
            row: Row = json.loads(line)
            if image and _begins_image(row, image):
                yield image
                image = []
            image.append(row)
        if image:
            yield image


def _begins_image(row: Row, image: Sequence[Row]) -> bool:
    """Return whether a row is of another image than those before; of two images of one name, by its method."""
    methods = [earlier.get("method") for earlier in image]
    return row["image"] != image[0]["image"] or row.get("method") in methods


def _uncertainty_of(row: Row) -> float | None:
    value = row.get("uncertainty")
    return value if isinstance(value, float) else None


def _write(path: str, ranked: Sequence[RankedImage], top: int | None) -> None:
    """Write sorted rows with the writers of other predictions, and put the file in its place at once."""
    folder, name = os.path.split(os.path.abspath(path))
    unfinished = os.path.join(folder, f".sorting-{name}")
    writer = writer_of(Storage(unfinished), RowFormat(top=top))
    writer.remove()  # left by a kill
    writer.append([row for image in ranked for row in image.rows], 0, len(ranked))
    writer.finish()
    os.replace(unfinished, path)


def _check_files(images: Iterable[Item]) -> Iterable[Item]:
    """Return the images; raise if Label Studio cannot show them: members of shards, bytes, objects in memory."""
    first = next(iter(images), None)
    if isinstance(images, Iterator) and first is not None:
        images = chain([first], images)
    name = "" if first is None else first.id
    if not (is_remote(name) or os.path.isfile(name)):
        raise OtptError(
            f"Label Studio shows files and addresses, and {name!r} is neither; export the images to files first."
        )
    return images
