"""Resumable rows of many images: the output of :func:`otpt.bulk.predict`, ``otpt predict -o`` and ``otpt embed``.

Next to the output, ``NAME.job.json`` describes the job and, after each flush, how much of the output is complete and a
digest of the images' names; on resuming, anything beyond is cut off. ``NAME.job.stamps`` has size and time of image
files (:mod:`otpt.bulk.stamps`). The formats are those of :mod:`otpt.bulk.writers`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter

from otpt.bulk.rows import Row
from otpt.bulk.stamps import StampFile, stamp_of
from otpt.bulk.storage import Storage
from otpt.bulk.writers import PART_ROWS, RowFormat, check_output, writer_of
from otpt.errors import OtptError
from otpt.features.pipeline import look_ahead
from otpt.files import Json, as_json

FLUSH_SECONDS = 3.0
"""Seconds between two writes to a disk."""
REMOTE_SECONDS = 15.0
"""Seconds between two writes to remote storage."""
_CHUNK = 1000  # images whose files are looked up together
_LOOKUPS = 8  # threads that look up files, which network file systems answer slowly
_REMEDY = "choose another output, or start it again (--overwrite, overwrite=True)"


class Identified(Protocol):
    """Anything with the name of an image: :class:`otpt.images.NamedImage` or a row of features."""

    @property
    def id(self) -> str: ...


_Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]


@dataclass
class _State:
    """How much of an output is complete.

    Attributes:
        done: number of images.
        failed: number of unreadable images among them.
        rows: number of rows.
        size: bytes of a text file.
        columns: columns of a table.
        last: name of the last image.
        digest: digest of the names.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    done: _Count = 0
    failed: _Count = 0
    rows: _Count = 0
    size: _Count = 0
    columns: list[str] | None = None
    last: str = ""
    digest: str = ""


_STATE = TypeAdapter(_State)
_FACTS: TypeAdapter[Mapping[str, Json]] = TypeAdapter(dict[str, JsonValue])


class RowStore:
    """Rows on disk or on remote storage, in the order of the images; a context manager.

    Rows are written every few seconds. After a kill, the same calls continue with the first image that is missing:
    :meth:`resume` skips the others. Only one process at a time can write a local output; remote storage has no locks.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.parquet`` file; without a suffix, a folder of Parquet parts. The latter two may
            be addresses (``s3://…``).
        facts: everything that decides the rows, as plain JSON; an output of other facts is refused with the difference.
        key: column that names the image.
        top: number of best classes of predictions with their own columns, ``label_1``, ``probability_1`` …; None for
            none.
        overwrite: whether to start the output again.
        metadata: metadata of Parquet files.

    Attributes:
        done: number of images that are written.
        failed: number of unreadable images among them, which have an ``error``.
        rows: number of their rows.
        changed: number of images whose files :meth:`resume` found changed since their rows were written.
        first_changed: name of the first of them.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "sizes.csv"
        >>> def measure(names):
        ...     with RowStore(path, {"unit": "letters"}) as store:
        ...         waiting = iter(names)
        ...         stored = store.resume(waiting)
        ...         for name in waiting:
        ...             store.write([{"image": name, "size": len(name)}])
        ...     return stored, store.done
        >>> measure(["cat", "horse"])
        (0, 2)
        >>> measure(["cat", "horse", "ant"])
        (2, 3)
    """

    def __init__(
        self,
        path: str | Path,
        facts: Mapping[str, Json],
        *,
        key: str = "image",
        top: int | None = None,
        overwrite: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = check_output(path)
        self.done = 0
        self.failed = 0
        self.rows = 0
        self.changed = 0
        self.first_changed = ""
        self._key = key
        self._facts: Mapping[str, Json] = json.loads(as_json(facts))
        self._storage = Storage(self.path)
        self._job_file = f"{self._storage.file}.job.json"
        self._stamp_path = f"{self._storage.file}.job.stamps"
        self._stamps = StampFile(self._storage, self._stamp_path)
        self._stored_stamps: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._writer = writer_of(self._storage, RowFormat(key, top, metadata))
        self._waiting: list[Row] = []
        self._images = 0  # of the waiting rows
        self._unreadable = 0  # of these images
        self._flushed = time.monotonic()
        self._stored = _State()  # when it was opened
        self._resumed = False
        self._last = ""
        self._digest = hashlib.blake2b(digest_size=16)
        self._lock = None if self._storage.remote else self._acquire()
        try:
            with self._storage.errors_in_words():
                self._open(overwrite=overwrite)
        except OtptError:
            self.close()
            raise

    def __enter__(self) -> RowStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish; after an error or a signal, only flush."""
        try:
            if kind is None:
                self.finish()
            else:
                self.flush(last=True)
        finally:
            self.close()

    def resume(self, images: Iterable[str | Identified]) -> int:
        """Skip the images that are written already, and count in :attr:`changed` those whose files changed.

        Args:
            images: names in the order of the rows; or :class:`~otpt.images.NamedImage` items, whose local files are
                compared by size and modification time too. Of an iterator, exactly the written images are consumed.

        Returns:
            The number of written images.

        Raises:
            OtptError: if the written rows are those of other images.
        """
        self._resumed = True
        if not self.done:
            return 0
        position = 0
        for names, stamps in _chunks(islice(images, self.done), look_up=bool(self._stored_stamps.any())):
            for name in names:
                self._add_name(name)
            before = self._stored_stamps[position : position + len(names)]
            now = np.array(stamps[: len(before)], before.dtype)
            changed = np.flatnonzero((before != now) & (before != 0) & (now != 0))
            if len(changed) and not self.changed:
                self.first_changed = names[changed[0]]
            self.changed += len(changed)
            position += len(names)
        self._stored_stamps = self._stored_stamps[:0]
        if self._digest.hexdigest() != self._stored.digest:
            raise OtptError(
                f"{self.path!r} holds predictions of {self.done} other images, up to {self._stored.last!r}; {_REMEDY}."
            )
        return self.done

    def write(self, rows: Sequence[Row], *, stamp: int = 0) -> None:
        """Append the rows of one image.

        Args:
            rows: one or more rows; the first one has the name of the image and, if it could not be read, an ``error``.
            stamp: size and time of the image file before it was read, by :func:`otpt.bulk.stamp_of`.
        """
        if self._stored.done and not self._resumed:
            raise OtptError(f"{self.path!r} already holds {self.done} images; call resume(names) before write(rows).")
        self._waiting += rows
        self._images += 1
        self._add_name(str(rows[0][self._key]))
        self._stamps.add(stamp)
        self._unreadable += bool(rows[0].get("error"))
        seconds = REMOTE_SECONDS if self._storage.remote else FLUSH_SECONDS
        if time.monotonic() - self._flushed > seconds or len(self._waiting) >= PART_ROWS:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write the waiting rows; as long as no image could be read, so that columns are unknown, only if ``last``."""
        self._flushed = time.monotonic()
        rows = self._waiting
        readable = self._writer.columns is not None or any(not row.get("error") for row in rows)
        if not rows or not (readable or last or len(rows) >= PART_ROWS):
            return
        images, unreadable = self._images, self._unreadable
        self._waiting = []
        self._images = self._unreadable = 0
        with self._storage.errors_in_words():
            self._stamps.flush(self.done)
            self._writer.append(rows, self.done, images)
            self.done += images
            self.failed += unreadable
            self.rows += len(rows)
            self._write_state()
            self._writer.settle()

    def finish(self) -> None:
        """Flush, and join the parts of a Parquet file: all images are done."""
        self.flush(last=True)
        with self._storage.errors_in_words():
            self._writer.finish()

    def close(self) -> None:
        """Release the lock."""
        try:
            with suppress(OtptError), self._storage.errors_in_words():
                self._stamps.close()  # without them, names are compared
        finally:
            if self._lock is not None:
                with suppress(OSError):
                    os.unlink(self._lock.lock_file)
                self._lock.release()

    def _add_name(self, name: str) -> None:
        self._last = name
        self._digest.update(name.encode("utf-8", "surrogateescape") + b"\0")

    def _acquire(self) -> FileLock:
        """Lock a local output: two processes would write rows twice."""
        folder, name = os.path.split(os.path.abspath(self.path))
        lock = FileLock(os.path.join(folder, f".{name}.lock"))
        with self._storage.errors_in_words():
            os.makedirs(folder, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise OtptError(f"Another process writes {self.path!r}; wait, or choose another output.") from None
        return lock

    def _open(self, *, overwrite: bool) -> None:
        """Continue the job of the output, or begin a new one."""
        if overwrite:
            self._writer.remove()
            self._storage.remove(self._stamp_path, self._job_file)
        if not self._storage.fs.exists(self._job_file):
            if self._storage.fs.isfile(self._storage.file) or self._storage.names(self._storage.file):
                raise OtptError(f"{self.path!r} exists and is not of a prediction job; {_REMEDY}.")
            self._write_state()
            self._stamps.restore(0)
            return
        facts, state = self._read_state()
        for name in dict.fromkeys([*self._facts, *facts]):
            if self._facts.get(name) != facts.get(name):
                raise OtptError(
                    f"{self.path!r} holds predictions of another job: {name} was {_short(facts.get(name))}, now it is "
                    f"{_short(self._facts.get(name))}; {_REMEDY}."
                )
        if self._writer.restore(state.done, state.size, state.columns):
            self._stored = state
            self.done = state.done
            self.failed = state.failed
            self.rows = state.rows
        self._stored_stamps = self._stamps.restore(self.done)

    def _read_state(self) -> tuple[Mapping[str, Json], _State]:
        try:
            content = json.loads(self._storage.fs.cat_file(self._job_file))
            facts = _FACTS.validate_python(content.pop("job"))
            return facts, _STATE.validate_python(content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise OtptError(
                f"The description of a job {self._job_file!r} is damaged; start again (--overwrite, overwrite=True)."
            ) from None

    def _write_state(self) -> None:
        state = _State(
            done=self.done,
            failed=self.failed,
            rows=self.rows,
            size=self._writer.size,
            columns=self._writer.columns,
            last=self._last,
            digest=self._digest.hexdigest(),
        )
        self._storage.write(self._job_file, as_json({"job": self._facts, **asdict(state)}))


def _chunks(images: Iterator[str | Identified], *, look_up: bool) -> Iterator[tuple[list[str], list[int]]]:
    """Yield names and current stamps of a few images at a time; stamps are 0 unless files are looked up."""

    def chunks() -> Iterator[list[str | Identified]]:
        while chunk := list(islice(images, _CHUNK)):
            yield chunk

    def describe(chunk: list[str | Identified]) -> tuple[list[str], list[int]]:
        names = [image if isinstance(image, str) else image.id for image in chunk]
        return names, [stamp_of(image) for image in chunk] if look_up else [0] * len(chunk)

    return (future.result() for future in look_ahead(describe, chunks(), _LOOKUPS if look_up else 0))


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
