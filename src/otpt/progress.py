"""Progress of an evaluation or a prediction: images done, rate, time left and failures.

In a log, the first lines come after a few seconds, the later ones once per minute; while nothing is done yet they say
what is waited for.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

from tqdm.auto import tqdm

from otpt.arguments import checked
from otpt.errors import OtptError

T = TypeVar("T")
LOG_SECONDS = 60.0
LOADING = "loading the model"
FIRST_SECONDS = (3.0, 10.0, 30.0)
"""Seconds after the begin of the first lines of a log; later ones come every :data:`LOG_SECONDS`."""
DELAY = 2.0
"""Seconds after which a bar appears that nobody asked for."""


class Progress:
    """Progress bar on a terminal or in a notebook, else one log line per minute; a context manager.

    Args:
        show: False to show nothing.
        log: called with a line, instead of the bar, if the standard error is not a terminal.
        seconds: between two lines.
        delay: seconds after which the bar appears, so that short work shows none.

    Attributes:
        done: number of finished images.
        failed: number of unreadable images among them.
        total: number of images; None if unknown.
        unknown: why the number is unknown.
    """

    @checked
    def __init__(
        self,
        *,
        show: bool = True,
        log: Callable[[str], None] | None = None,
        seconds: float = LOG_SECONDS,
        delay: float = 0.0,
    ) -> None:
        self.done = self.failed = self._first = 0
        self.total: int | None = 0
        self.unknown = ""
        self._started = self._logged = time.monotonic()
        self._log = _print if log is None else log
        self._seconds, self._show, self.delay = seconds, show, delay
        self._bar: tqdm[object] | None = None
        self._phase = ""
        self._ended: threading.Event | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.line()})"

    def __enter__(self) -> Self:
        if self._show and self._ended is None:
            self._ended = threading.Event()
            threading.Thread(target=self._log_first, args=(self._ended,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended is not None:
            self._ended.set()
            self._ended = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @property
    def shown(self) -> bool:
        """Whether anything is shown."""
        return self._show

    @contextmanager
    def waiting(self, phase: str) -> Iterator[None]:
        """Say what is waited for, such as "loading the model", within a context."""
        self._phase = phase
        try:
            yield
        finally:
            self._phase = ""
            if self.done == self._first:
                self._started = time.monotonic()  # the rate is that of the images

    def start(self, done: int, total: int | None, *, say_done: bool = True) -> None:
        """Start with ``done`` of ``total`` images finished; ``total`` is None if unknown."""
        self.done, self.total, self._first = done, total, done
        self._started = self._logged = time.monotonic()
        if not self._show or (total is not None and done >= total):
            return
        if _has_bars():
            self._bar = tqdm(
                total=total, initial=done, unit=" images", dynamic_ncols=True, leave=False, delay=self.delay
            )
        elif say_done and done and total is not None:
            self._log(f"{done}/{total} images are already done; {total - done} are left")

    def update(self, done: int) -> None:
        """Set the number of finished images."""
        step, self.done = done - self.done, done
        if self._bar is not None:
            self._bar.total = self.total  # which may be known by now
            if self.failed:
                self._bar.set_postfix({"failed": self.failed}, refresh=False)
            self._bar.update(step)
        elif self._show and time.monotonic() - self._logged >= self._seconds:
            self._logged = time.monotonic()
            self._log(self.line())

    def track(
        self, results: Iterable[T], total: int | None, failed: Callable[[T], bool] = lambda result: False
    ) -> Iterator[T]:
        """Yield the results of ``total`` images, None if unknown, while the progress is shown.

        Args:
            results: results of the images, in order.
            total: number of images.
            failed: whether the result is that of an image that cannot be used.
        """
        with self:
            self.start(0, total)
            for number, result in enumerate(results, start=1):
                self.failed += failed(result)
                self.update(number)
                yield result

    def line(self) -> str:
        """Return the state as text."""
        if self._phase:
            return f"{self._phase}, for {duration(time.monotonic() - self._started)} so far"
        count = f"{self.done} images" if self.total is None else f"{self.done}/{self.total} images"
        parts = [f"{count} (their number is unknown: {self.unknown})" if self.unknown else count]
        if computed := self.done - self._first:
            rate = computed / max(time.monotonic() - self._started, 1e-9)
            parts.append(f"{rate:.1f} images/s" if rate >= 1 else f"{1 / rate:.1f} s per image")
            if self.total is not None:
                parts.append(f"{duration(max(self.total - self.done, 0) / rate)} left")
        if self.failed:
            parts.append(f"{self.failed} could not be read")
        return ", ".join(parts)

    def _log_first(self, ended: threading.Event) -> None:
        """Log the first lines of a job that is not shown as a bar, in a thread."""
        before = 0.0
        for seconds in FIRST_SECONDS:
            if ended.wait(seconds - before):
                return
            before = seconds
            is_log = self._bar is None and (bool(self._phase) or not _has_bars())
            if is_log and self._seconds >= seconds:
                self._log(self.line())


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def as_progress(progress: object) -> Progress:
    """Return how progress is shown, as asked for by a keyword ``progress``.

    Args:
        progress: True for a bar, or lines in a log; False for nothing; a :class:`Progress`; None for a bar on a
            terminal or in a notebook, from the third second on.
    """
    if isinstance(progress, Progress):
        return progress
    if progress is None:
        return Progress(show=_has_bars(), delay=DELAY)
    if isinstance(progress, bool):
        return Progress(show=progress)
    raise OtptError(f"progress is {progress!r:.80}; expected True, False or an otpt.evaluation.Progress.")


def _has_bars() -> bool:
    """Return whether a bar can be seen."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    """Return whether this process is a notebook kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


@checked
def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(3725)
    '1 h 2 min'
    """
    if not 0 <= seconds < math.inf:
        raise OtptError(f"seconds is {seconds!r}; expected a finite number of at least 0.")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
