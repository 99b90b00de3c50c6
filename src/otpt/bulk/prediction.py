"""Predictions and features of any number of images, written to a resumable output."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

from otpt.arguments import checked
from otpt.bulk.jobs import READERS, Answer, Chunk, ClassifierJob, EmbeddingJob, Item, split_chunks
from otpt.bulk.rows import answer_rows
from otpt.bulk.stamps import stamp_of
from otpt.bulk.store import RowStore
from otpt.bulk.writers import check_output
from otpt.classifier import Classifier
from otpt.data import Dataset, open_source
from otpt.data.sources import Source, SourceError
from otpt.errors import OtptError
from otpt.features.inputs import image_inputs
from otpt.images import NamedImage
from otpt.methods import Method, refuse_features
from otpt.prediction import Failure
from otpt.progress import LOADING, Progress, as_progress
from otpt.workers import Job, Pool, get_pool, local_pool

Result = TypeVar("Result")
_ResultOut = TypeVar("_ResultOut", covariant=True)
Images = str | os.PathLike[str] | Source | Dataset | Iterable[object]
"""Words of :func:`otpt.data.open_source`, a source, a data set, or what :meth:`otpt.Classifier.stream` takes."""


class ImageJob(Job[Chunk, _ResultOut], Protocol[_ResultOut]):
    """Job of a pool whose items are chunks of images, with one result per image."""

    @property
    def chunk_size(self) -> int:
        """Number of images that a worker in another process gets at a time."""


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


@checked
def predict(
    classifier: Classifier | ClassifierJob,
    source: Images,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str | Method] | None = None,
    workers: int | None = None,
    pool: Pool | str | None = None,
    top: int | None = None,
    ranked: bool = False,
    overwrite: bool = False,
    progress: Monitor | bool | None = None,
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
        workers: number of processes, each with a copy of the model; by default, this one.
        pool: pool of workers, or the name of one (:mod:`otpt.workers`), in place of a number.
        top: number of best classes with their own columns; by default, the label alone.
        ranked: whether to add a column ``uncertainty``, from 0 to 1; :func:`otpt.bulk.rank` sorts by it.
        overwrite: whether to start the output again.
        progress: True for a bar, or a line per minute in a log; False for nothing; or a :class:`Monitor`. By default
            a bar on a terminal or in a notebook.

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
    if top is not None and top < 1:
        raise OtptError(f"top is {top}; expected at least 1.")
    if isinstance(classifier, ClassifierJob) and methods is not None:
        raise OtptError("methods were given with a job; expected a classifier, or a job with these methods.")
    job = classifier if isinstance(classifier, ClassifierJob) else ClassifierJob.of(classifier, methods)
    images = open_images(source)
    pool = _open_pool(pool, workers, job.device)
    job = fit_job(job, images, pool)
    with ExitStack() as stack:  # finished rows are also written after Ctrl-C and SIGTERM
        stack.enter_context(pool)
        monitor = stack.enter_context(_monitor(progress))
        with monitor.waiting(LOADING):
            facts = {**pool.facts(job), "top": top, **({"ranked": True} if ranked else {})}
        store = stack.enter_context(RowStore(os.fspath(out), facts, top=top, overwrite=overwrite))
        for image, answer in run(job, images, pool, monitor, store):
            monitor.answered(image.name, answer)
            several_labels = job.task.independent_labels
            rows = answer_rows(image.name, answer, top or 1, several_labels=several_labels, ranked=ranked)
            store.write(rows, stamp=image.stamp)
    return BulkResult(store.path, store.done, store.failed, store.rows)


def embed(
    job: EmbeddingJob,
    source: Images,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    pool: Pool | str | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Monitor | bool | None = None,
) -> BulkResult:
    """Encode images and write a row each with its unit feature; repeated, the same call continues after a kill.

    :func:`predict` and ``evaluate`` take the file in place of the images.

    Args:
        job: how to make features.
        source: images, as for :func:`predict`.
        out: ``.parquet`` file; without a suffix, a folder of Parquet parts. Both may be addresses.
        workers: number of processes, as for :func:`predict`.
        pool: pool of workers, as for :func:`predict`.
        dtype: type of the stored numbers.
        metadata: further metadata of the file, such as the name of the model (``otpt.model``).
        overwrite: whether to start the output again.
        progress: shows the progress.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import otpt
        >>> backbone = otpt.load_backbone("pocket", device="cpu")
        >>> job = EmbeddingJob(backbone.to, otpt.ViewRecipe(n_views=1), device="cpu")
        >>> embed(job, [np.zeros((32, 32, 3), np.uint8)], Path(tempfile.mkdtemp()) / "features.parquet").images
        1
    """
    if check_output(os.fspath(out)).endswith((".csv", ".jsonl")):
        raise OtptError(f"Features cannot be written to {os.fspath(out)!r}; expected .parquet or a folder.")
    images = open_images(source)
    if isinstance(images, Source) and images.has_features:
        raise OtptError(f"{source!s:.80} already holds features; expected images.")
    if isinstance(images, Source) and images.is_remote:
        job = replace(job, readers=READERS)
    pool = _open_pool(pool, workers, job.device)
    check_pool(images, pool)
    with ExitStack() as stack:
        stack.enter_context(pool)
        monitor = stack.enter_context(_monitor(progress))
        with monitor.waiting(LOADING):
            facts = {**pool.facts(job), "dtype": dtype}
        of_file = {f"otpt.{name}": str(facts[name]) for name in ("backbone", "views", "seed", "dtype")}
        store = stack.enter_context(
            RowStore(os.fspath(out), facts, key="id", overwrite=overwrite, metadata={**(metadata or {}), **of_file})
        )
        for image, feature in run(job, images, pool, monitor, store):
            row: dict[str, object] = {"id": image.name, "feature": None, "error": None}
            if isinstance(feature, OtptError):
                row["error"] = str(feature)
            else:
                row["feature"] = feature.astype(dtype)
            store.write([row], stamp=image.stamp)
    return BulkResult(store.path, store.done, store.failed, store.rows)


def run(
    job: ImageJob[Result], images: Iterable[Item], pool: Pool, monitor: Monitor, store: RowStore | None = None
) -> Iterator[tuple[PendingImage, Result]]:
    """Yield each image that is not in the store yet, and its result, with progress.

    If the source cannot be read any further, the results of all earlier images come first.

    Args:
        job: makes the workers.
        images: images, or rows of features.
        pool: maps chunks of images over its workers.
        monitor: shows the progress.
        store: store of the rows; they are written by the caller.
    """
    waiting = iter(images)
    done = 0
    if store is not None:
        done = store.resume(waiting)
        streams = stream_methods(job)
        if done and streams and next(waiting, None) is not None:
            raise OtptError(
                f"{store.path!r} holds {done} images, but method {streams[0]!r} carries a state from image to image, "
                "so it cannot be continued; start it again with --overwrite (overwrite=True)."
            )
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
        chunks = split_chunks(remember(), 1 if pool.inline else job.chunk_size)
        with monitor.waiting(LOADING):
            results = pool.map(job, chunks)
        for number, result in enumerate(results, start=done + 1):
            error = _error_of(result)
            if isinstance(error, SourceError):
                raise error
            monitor.failed += error is not None
            yield pending.popleft(), result
            monitor.update(number)
    if problems:
        raise problems[0]


@checked
def open_images(source: Images) -> Iterable[Item]:
    """Return the images of a source as named images or rows of features."""
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return open_source(os.fspath(source))
    if isinstance(source, Dataset):
        return (NamedImage(name, source.reader(index)) for index, name in enumerate(source.ids))
    return (NamedImage(image.shown, image.source) for image in image_inputs(source))


def fit_job(job: ClassifierJob, images: Iterable[Item], pool: Pool) -> ClassifierJob:
    """Return a job for the images: of features, if they are, or of images that are read ahead if they are remote."""
    check_pool(images, pool)
    streams = stream_methods(job)
    if streams and not pool.inline:
        raise OtptError(
            f"Method {streams[0]!r} carries a state from image to image, so its images are predicted in one process; "
            "leave --workers and --engine out."
        )
    if not isinstance(images, Source):
        return job
    fitted = job
    if images.has_features:
        refuse_features(job.methods, str(images))
        fitted = replace(job, metadata=images.metadata)
    elif images.is_remote:
        fitted = replace(job, readers=READERS)
    return job if fitted == job else fitted  # a pool loads the model again for another job


def stream_methods(job: object) -> list[str]:
    """Return the names of the methods of a job whose predictions depend on the images before."""
    methods = job.methods if isinstance(job, ClassifierJob) else ()
    return [method.name for method in methods if method.scope == "stream"]


def check_pool(images: Iterable[Item], pool: Pool) -> None:
    """Raise an :class:`OtptError` for images that only this process can read."""
    if not pool.inline and isinstance(images, Source) and images.reads_standard_input:
        raise OtptError("Standard input, -, is read in this process; leave --workers and --engine out.")


def _open_pool(pool: Pool | str | None, workers: int | None, device: str) -> Pool:
    """Return the pool that was asked for."""
    if pool is None:
        return local_pool(1 if workers is None else workers, device.partition(":")[0])
    if workers is not None:
        raise OtptError("Both workers and a pool were given; expected one of them.")
    if not isinstance(pool, (str, Pool)):
        raise OtptError(f"The pool is a {type(pool).__name__}; expected a pool of workers, or the name of one.")
    return get_pool(pool) if isinstance(pool, str) else pool


def _monitor(progress: Monitor | bool | None) -> Monitor:
    """Return the monitor that was asked for."""
    if isinstance(progress, Monitor):
        return progress
    shown = as_progress(progress)
    if progress is not None and not isinstance(progress, bool):
        raise OtptError(f"progress is {progress!r:.80}; expected True, False or an otpt.bulk.Monitor.")
    return Monitor(show=shown.shown, delay=shown.delay)


def _error_of(result: object) -> OtptError | None:
    if isinstance(result, Failure):
        return result.error
    return result if isinstance(result, OtptError) else None


def _count(images: Iterable[Item], progress: Progress) -> None:
    if not isinstance(images, Source):
        progress.total = len(images) if isinstance(images, Sized) else None
        return
    with suppress(OtptError):  # reported where the images are used
        count = images.count()
        if isinstance(count, int):
            progress.total = count
        else:
            progress.unknown = count.reason
