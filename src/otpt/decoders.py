"""Decoding of image files in processes of their own, with limits on their memory and processor time.

    with Decoders(processes=2) as decoders:
        image, digest = decoders.open("photo.jpg")

Pillow and the libraries behind it are written in C and read what strangers wrote. A decoder that takes more memory or
time than an image of its size needs, or that crashes, ends with its process: that image is an
:class:`~otpt.errors.OtptError`, and a new process decodes the next one. The processes import neither torch nor models,
and answer in JSON and pixels, which are validated here. Pixels are those of :func:`otpt.images.open_with_digest`, bit by
bit.

The limits are those of ``setrlimit``, which only Unix has; macOS ignores the one on memory. Elsewhere a decoder is ended
after a deadline.
"""

from __future__ import annotations

import io
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol, Self

from PIL import Image

from otpt.errors import OtptError
from otpt.images import (
    LIMITS,
    MAX_PIXELS,
    ImageFeatures,
    ImageSource,
    UrlLimits,
    file_bytes,
    is_array,
    open_header,
    open_with_digest,
)

try:
    import resource
except ImportError:  # Windows
    _HAS_LIMITS = False
else:
    _HAS_LIMITS = True

SERVED_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats whose header has the size of the decoded image; an ICO of 16 × 16 pixels may hold a PNG of any size."""
_BASE = 256 << 20  # bytes of memory that a decoder may take for an image of any size
_PER_PIXEL = 32  # bytes: Pillow's image of 4, its copies upright and in RGB, and the frames of a video codec
_PER_BYTE = 4  # bytes of memory per byte of the file
_SECONDS = 20.0  # of processor time for any image
_SECONDS_PER_PIXEL = 1e-6
_HEADER_SECONDS = 5.0
_WAITING = 4.0  # multiple of the processor time after which a decoder is ended, on a machine that is busy
_SHARED = 16 << 20  # bytes that the file shared with a process keeps between images
_MALLOC = {  # of glibc
    "MALLOC_ARENA_MAX": "1",  # an arena of each thread would count as memory
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # memory is used again for the next image, not returned and zeroed
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
_READS = 5000  # of a header: some of Pillow's readers take time quadratic in the number of its parts
_SCANS = 100  # of a JPEG, each of which passes over all pixels; the limit of libtiff
_TILE = 1 << 20  # pixels of a TIFF's tile that a smaller image may have
_TILE_SIDES = (322, 323)  # tags TileWidth and TileLength

Opened = tuple[Image.Image, str]
"""RGB image and digest of its content."""


@dataclass(frozen=True)
class DecodingLimits:
    """What image files may be.

    Attributes:
        formats: formats of Pillow; None for all but those that are programs.
        max_pixels: largest number of pixels of an image.
    """

    formats: tuple[str, ...] | None = None
    max_pixels: int = MAX_PIXELS


class Opener(Protocol):
    """Function that opens and decodes an image: :func:`open_here`, or :meth:`Decoders.open`."""

    def __call__(self, source: ImageSource, urls: UrlLimits | None = None, /) -> Opened: ...


def open_here(source: ImageSource, urls: UrlLimits | None = LIMITS, /) -> Opened:
    """Open and decode an image in this process."""
    return open_with_digest(source, urls=urls)


class Decoders:
    """Processes that decode image files, started when they are needed; a context manager.

    Args:
        processes: largest number of processes, and of images decoded at a time.
        limits: formats and pixels of images.
    """

    def __init__(self, processes: int = 1, limits: DecodingLimits = DecodingLimits()) -> None:
        if processes < 1:
            raise OtptError(f"The number of decoding processes is {processes}; expected 1 or more.")
        self.limits = limits
        self.ended = 0
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(processes):
            self._idle.put(None)
        self._processes = processes
        self._closed = threading.Event()

    def open(self, source: ImageSource, urls: UrlLimits | None = LIMITS, /) -> Opened:
        """Open and decode an image, as :func:`otpt.images.open_with_digest` does; arrays and PIL images stay here."""
        if isinstance(source, (Image.Image, ImageFeatures)) or is_array(source):
            return open_with_digest(source, max_pixels=self.limits.max_pixels, urls=urls)
        data, name = file_bytes(source, urls)
        return self.decode(data, name)

    def size(self, data: bytes, name: str = "the given bytes") -> tuple[int, int]:
        """Read the header of an image file and return (width, height)."""
        answer, _ = self._ask(data, name, header_only=True)
        return _size_of(answer, self.limits.max_pixels)

    def decode(self, data: bytes, name: str = "the given bytes") -> Opened:
        """Decode an image file."""
        answer, colours = self._ask(data, name, header_only=False)
        size = _size_of(answer, self.limits.max_pixels)
        digest = answer.get("digest")
        if len(colours) != 3 * size[0] * size[1] or not isinstance(digest, str):
            raise OtptError(f"Cannot use {name} as an image: its decoder answered with damaged pixels.")
        return Image.frombytes("RGB", size, colours), digest

    def close(self) -> None:
        """End the processes that wait for images, and the others after their image."""
        self._closed.set()
        with suppress(queue.Empty):
            for _ in range(self._processes):
                process = self._idle.get_nowait()
                if process is not None:
                    process.end()
                self._idle.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, data: bytes, name: str, *, header_only: bool) -> tuple[dict[str, object], bytes]:
        """Send a file to a process and return its answer; a process that does not answer is ended."""
        job = _Job(name, len(data), header_only, self.limits.formats, self.limits.max_pixels)
        with self._process() as process:
            answer, colours = process.ask(job, data)
        if "error" in answer:
            raise OtptError(str(answer["error"])[:1000])
        return answer, colours

    @contextmanager
    def _process(self) -> Iterator[_Process]:
        """Wait for an idle process; one that failed is replaced when the next image comes."""
        process = self._idle.get()
        try:
            if process is None or process.has_ended:
                process = _Process()
            yield process
        finally:
            if process is not None and (self._closed.is_set() or process.has_ended):
                self.ended += not self._closed.is_set()
                process.end()
                process = None
            self._idle.put(process)


class _Job(NamedTuple):
    """What a process is asked.

    Attributes:
        name: name of the image in messages.
        size: bytes of the file.
        header_only: whether only the size of the image is asked for.
        formats: see :class:`DecodingLimits`.
        max_pixels: see :class:`DecodingLimits`.
    """

    name: str
    size: int
    header_only: bool
    formats: Sequence[str] | None
    max_pixels: int

    def seconds(self, pixels: int) -> float:
        """Return the processor time for an image of this number of pixels."""
        return _HEADER_SECONDS if self.header_only else _SECONDS + _SECONDS_PER_PIXEL * pixels


class _Process:
    """One decoding process and the connection to it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._shared = _shared_file()  # a pipe would need a switch of processes for every 200 kB
        code = f"import sys; sys.path[:] = {sys.path!r}; from otpt.decoders import main; main()"
        numbers = [theirs.fileno(), self._shared.fileno()]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_MALLOC},
        )
        theirs.close()

    @property
    def has_ended(self) -> bool:
        """Whether it cannot decode another image."""
        return self._connection.closed or self._process.poll() is not None

    def ask(self, job: _Job, data: bytes) -> tuple[dict[str, object], bytes]:
        """Send a job and return its answer, or an error if the process ends."""
        waited, seconds = False, job.seconds(job.max_pixels)
        try:
            _replace(self._shared, data)
            self._connection.send_bytes(json.dumps(job).encode())
            waited = not self._connection.poll(_WAITING * seconds + 10)
            if not waited:
                answer = json.loads(self._connection.recv_bytes(1 << 16))
                if isinstance(answer, dict):
                    colours = b""
                    if "digest" in answer:
                        width, height = _size_of(answer, MAX_PIXELS)
                        colours = os.pread(self._shared.fileno(), 3 * width * height, 0)
                    if len(colours) > _SHARED:
                        self._shared.truncate(0)
                    return answer, colours
        except (OSError, EOFError, ValueError):
            pass
        self.end()
        reason = self._reason(seconds) if not waited else "it took too long"
        return {"error": f"Cannot use {job.name} as an image: its decoder was ended; {reason}."}, b""

    def _reason(self, seconds: float) -> str:
        """Return why the process ended by itself."""
        code = self._process.returncode
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"it took more than {seconds:.0f} s of processor time"
        return "the file is damaged, or needs more memory than an image of its size"

    def end(self) -> None:
        """End the process, unless it has ended."""
        self._connection.close()
        self._shared.close()
        with suppress(subprocess.TimeoutExpired):  # one that is idle ends when the connection does
            self._process.wait(0.5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _shared_file() -> IO[bytes]:
    """Return an open file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("otpt-decoder"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _replace(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write data to the beginning of an open file."""
    view, offset = memoryview(data), 0
    while offset < len(view):
        offset += os.pwrite(file.fileno(), view[offset:], offset)


def _size_of(answer: dict[str, object], max_pixels: int) -> tuple[int, int]:
    size = answer.get("size")
    if isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size):
        width, height = size
        if width * height <= max_pixels:
            return width, height
    raise OtptError("The decoder answered with a damaged size.")


# ---- in the process -------------------------------------------------------------------------------------------------


class _Header(io.BytesIO):
    """A file object that limits the number of reads of a header."""

    left: float = _READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as :class:`io.BytesIO` does, up to the limit."""
        self.left -= 1
        if self.left < 0:
            raise OtptError(f"its header has more than {_READS} parts")
        return super().read(size)


def main() -> None:
    """Decode image files of the parent process until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent closes the connection
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError), open(int(sys.argv[2]), "w+b", buffering=0) as shared:
        while True:
            job = _Job(*json.loads(connection.recv_bytes()))
            answer, colours = _answer(job, os.pread(shared.fileno(), job.size, 0))
            _replace(shared, colours)
            del colours
            connection.send_bytes(json.dumps(answer).encode())


def _answer(job: _Job, data: bytes) -> tuple[dict[str, object], bytes]:
    """Return the answer to a job and the pixels; an error if the file cannot be used."""
    name = job.name
    try:
        _set_limits(_BASE + _PER_BYTE * len(data), job.seconds(0))
        opened = open_checked(data, job.formats, job.max_pixels, name)
        width, height = opened.size
        if job.header_only:
            return {"size": [width, height]}, b""
        _set_limits(_BASE + _PER_BYTE * len(data) + _PER_PIXEL * width * height, job.seconds(width * height))
        image, digest = open_with_digest(opened, max_pixels=job.max_pixels, name=name)
        if job.formats is not None and sorted(image.size) != sorted((width, height)):
            raise OtptError(
                f"Cannot use {name} as an image: its header has {width}×{height} pixels, its content "
                f"{image.width}×{image.height}."
            )
        return {"size": list(image.size), "digest": digest}, image.tobytes()
    except OtptError as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": f"Cannot use {name} as an image: it needs more memory than an image of its size."}, b""
    except Exception as error:
        return {"error": f"Cannot use {name} as an image: it is corrupt ({type(error).__name__})."}, b""


def open_checked(data: bytes, formats: Sequence[str] | None, max_pixels: int, name: str) -> Image.Image:
    """Open an image file without decoding it, and check what its header says; raise ``OtptError``."""
    if not data:
        raise OtptError(f"Cannot use {name} as an image: it is empty (0 bytes).")
    file = _Header(data)
    image = open_header(file, formats=None if formats is None else tuple(formats), name=name)
    file.left = float("inf")  # the decoder takes small parts in linear time
    width, height = image.size
    if width < 1 or height < 1:
        raise OtptError(f"Cannot use {name} as an image: it has no pixels ({width}×{height}).")
    if width * height > max_pixels:
        raise OtptError(f"The image has {width}×{height} = {width * height:,} pixels; expected at most {max_pixels:,}.")
    if (scans := data.count(b"\xff\xda")) > _SCANS and data.startswith(b"\xff\xd8"):
        raise OtptError(f"The JPEG has {scans:,} scans; expected at most {_SCANS}.")
    if image.format == "TIFF":
        sides = [getattr(image, "tag_v2", {}).get(tag, 0) for tag in _TILE_SIDES]
        if not all(isinstance(side, int) for side in sides) or math.prod(sides) > max(width * height, _TILE):
            raise OtptError(f"The TIFF has tiles of {sides[0]}×{sides[1]} pixels, larger than the image.")
    return image


def _set_limits(memory: int, seconds: float) -> None:
    """Limit what this process may take for one image; only on Unix, and the memory only on Linux."""
    if not _HAS_LIMITS:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
