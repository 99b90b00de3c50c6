"""Predictions of any number of images, written to a resumable output."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from otpt.backbones import available_devices
from otpt.bulk.jobs import READERS, Answer, ClassifierJob, FeatureWorker, Item, Processes, Worker, Workers
from otpt.bulk.rows import answer_rows
from otpt.bulk.stamps import stamp_of
from otpt.bulk.store import RowStore
from otpt.bulk.writers import check_output
from otpt.classifier import Classifier
from otpt.data.sources import Source, SourceError, open_source
from otpt.errors import OtptError
from otpt.features.inputs import image_inputs
from otpt.images import NamedImage
from otpt.methods import Method, refuse_features
from otpt.prediction import Failure
from otpt.progress import Progress

Result = TypeVar("Result")
Images = str | os.PathLike[str] | Source | Iterable[object]
"""Words of :func:`otpt.data.open_source`, an opened source, or what :meth:`otpt.Classifier.stream` takes."""


@dataclass(frozen=True)
class BulkResult:
    """What :func:`predict` has written, with the rows of earlier calls.

    Attributes:
        path: path or address of the output.
        images: number of images.
        failed: number of images among them that could not be read; their rows have an ``error``.
        rows: number of rows, one per image and method.
    """

    path: str
    images: int
    failed: int
    rows: int


class PendingImage(NamedTuple):
    """Name of an image, and its stamp before it was read."""

    name: str
    stamp: int


class Monitor(Progress):
    """Progress of a prediction, and what is reported next to it."""

    def note(self, line: str) -> None:
        """Report something that is no error; a warning by default."""
        warnings.warn(line, stacklevel=2)

    def resumed(self, store: RowStore) -> None:
        """Report that the rows of some images exist already."""
        if store.changed:
            self.note(
                f"{store.changed:,} of the {store.done:,} images in {store.path!r} have changed since, the first is "
                f"{store.first_changed!r}; their rows stay, predict all again with --overwrite (overwrite=True)."
            )

    def answered(self, image: str, answer: Answer) -> None:
        """Report the answer of an image; nothing by default."""


def predict(
    classifier: Classifier | ClassifierJob,
    source: Images,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str | Method] | None = None,
    workers: int | Workers = 1,
    top: int | None = None,
    overwrite: bool = False,
    progress: Monitor | None = None,
) -> BulkResult:
    """Predict images and write their rows in order; repeated, the same call continues after a kill.

    An output of another model, method or class list is refused with the difference, and one of other images too. New
    images at the end are added. Names are compared, and of local image files also size and modification time: a
    warning tells how many have changed, and their rows stay.

    Args:
        classifier: classifier with classes; or how to make it, so that only the workers load the model.
        source: folder, pattern, list, shards, table, data set or address as in :func:`otpt.data.open_source`; or an
            iterable of images, of which paths are named by themselves and others "image N".
        out: ``.csv``, ``.jsonl`` or ``.parquet`` file; without a suffix, a folder of Parquet parts. The latter two may
            be addresses.
        methods: names of the methods, with a row each; those of the classifier by default.
        workers: number of processes, each with a copy of the model; or the workers themselves.
        top: number of best classes with their own columns; by default, the label alone.
        overwrite: whether to start the output again.
        progress: shows the progress, ``otpt.bulk.Monitor()`` as a bar; nothing is shown by default.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import otpt
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for color in ("red", "blue"):
        ...     Image.new("RGB", (32, 32), color).save(folder / f"{color}.png")
        >>> clf = otpt.load("pocket", method="zero-shot", device="cpu", classes=["cat", "dog"])
        >>> result = otpt.bulk.predict(clf, folder, folder / "labels.csv")
        >>> result.images, result.failed
        (2, 0)
    """
    check_output(os.fspath(out))
    if isinstance(classifier, ClassifierJob) and methods is not None:
        raise OtptError("methods were given with a job; expected a classifier, or a job with these methods.")
    job = classifier if isinstance(classifier, ClassifierJob) else ClassifierJob.of(classifier, methods)
    images = open_images(source)
    several_labels = job.task.independent_labels
    with ExitStack() as stack:  # finished rows are also written after Ctrl-C and SIGTERM
        if isinstance(workers, int):
            workers = _start(classifier, job, images, workers, stack)
        facts = {**workers.facts(), "top": top}
        store = stack.enter_context(RowStore(os.fspath(out), facts, top=top, overwrite=overwrite))
        monitor = progress or Monitor(show=False)
        for image, answer in run(workers, images, monitor, store):
            monitor.answered(image.name, answer)
            rows = answer_rows(image.name, answer, top or 1, several_labels=several_labels)
            store.write(rows, stamp=image.stamp)
    return BulkResult(store.path, store.done, store.failed, store.rows)


def run(
    work: Callable[[Iterator[Item]], Iterator[Result]],
    images: Iterable[Item],
    monitor: Monitor,
    store: RowStore | None = None,
) -> Iterator[tuple[PendingImage, Result]]:
    """Yield each image that is not in the store yet, and its result, with progress.

    If the source cannot be read any further, the results of all earlier images come first.

    Args:
        work: function that maps images to results lazily, in their order; it may read images ahead.
        images: images, or rows of features.
        monitor: shows the progress.
        store: store of the rows; they are written by the caller.
    """
    waiting = iter(images)
    done = 0
    if store is not None:
        done = store.resume(waiting)
        monitor.resumed(store)
    pending: deque[PendingImage] = deque()
    problems: list[OtptError] = []

    def remember() -> Iterator[Item]:
        try:
            for image in waiting:
                pending.append(PendingImage(image.id, stamp_of(image)))
                yield image
        except OtptError as error:
            problems.append(error)

    with monitor:
        monitor.start(done, None, say_done=False)
        monitor.failed = store.failed if store is not None else 0
        if monitor.shown:
            threading.Thread(target=_count, args=(images, monitor), daemon=True).start()  # many images take a while
        for number, result in enumerate(work(remember()), start=done + 1):
            error = _error_of(result)
            if isinstance(error, SourceError):
                raise error
            monitor.failed += error is not None
            yield pending.popleft(), result
            monitor.update(number)
    if problems:
        raise problems[0]


def open_images(source: Images) -> Iterable[Item]:
    """Return the images of a source as named images or rows of features."""
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return open_source(os.fspath(source))
    return (NamedImage(image.shown, image.source) for image in image_inputs(source))


def _start(
    classifier: Classifier | ClassifierJob, job: ClassifierJob, images: Iterable[Item], workers: int, stack: ExitStack
) -> Workers:
    """Return this process or several as workers; ``stack`` ends them."""
    if workers < 1:
        raise OtptError(f"The number of workers is {workers}; expected 1 or more.")
    loaded = classifier if isinstance(classifier, Classifier) else None
    source = images if isinstance(images, Source) else None
    if source is not None and (source.has_features or source.reads_standard_input) and workers > 1:
        what = "Features are classified" if source.has_features else "Standard input is read"
        raise OtptError(f"{what} in this process; leave workers={workers} out.")
    if source is not None and source.has_features:
        refuse_features(job.methods, str(source))
        return FeatureWorker(job, source.metadata, loaded)
    if workers == 1:
        readers = READERS if source is not None and source.is_remote else 0
        return Worker(job, readers=readers, classifier=loaded)
    gpus = [name for name in available_devices() if name.startswith("cuda:")]
    use_all = job.device.startswith("cuda") and len(gpus) > 1
    processes = Processes(job if loaded is None else job.packed(), workers, gpus if use_all else None)
    stack.callback(processes.close)
    return processes


def _error_of(result: object) -> OtptError | None:
    if isinstance(result, Failure):
        return result.error
    return result if isinstance(result, OtptError) else None


def _count(images: Iterable[Item], progress: Progress) -> None:
    if isinstance(images, Source):
        with suppress(OtptError):  # reported where the images are used
            progress.total = images.count()
