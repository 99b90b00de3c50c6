"""Progress of an evaluation: rate, time left, and the accuracy and ECE of each method so far.

On a terminal a bar with a small table; otherwise a line every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from otpt.evaluation.evaluator import Predicted
from otpt.evaluation.spans import duration
from otpt.metrics.binned import bin_index

LOG_SECONDS = 10.0
_BINS = 20
_SHOWN = 12  # methods in the running table; a sweep may have hundreds


@dataclass(frozen=True)
class Started:
    """Sent once by each process: images (times seeds) that were done before, and all of them."""

    done: int
    total: int


@dataclass(frozen=True)
class ImageDone:
    """An image that is done: (confidence, correct) by (prompt, method); none if it could not be read."""

    dataset: str
    seed: int
    results: Mapping[tuple[str, str], tuple[float, bool]]


@dataclass(frozen=True)
class Repeated:
    """This many images (times seeds) that were done are computed again."""

    images: int


ProgressEvent = Started | ImageDone | Repeated


def image_done(predicted: Predicted) -> ImageDone:
    """What is reported of an image."""
    results = {
        column: (min(output.confidence, 1.0), output.index == predicted.label)
        for column, output in zip(predicted.item.columns, predicted.outputs, strict=False)
    }
    return ImageDone(predicted.item.dataset, predicted.item.seed, results)


class Tally:
    """Running accuracy and ECE of one method: sums for each bin of the confidence."""

    def __init__(self) -> None:
        self._sums = np.zeros((_BINS, 2))  # of confidence, of right answers
        self.count = 0

    def add(self, confidence: float, correct: bool) -> None:
        """One more image."""
        self.count += 1
        index = int(bin_index(np.asarray(confidence), _BINS, "right"))
        if index >= 0:
            self._sums[index] += (confidence, correct)

    @property
    def accuracy(self) -> float:
        """Fraction of right answers so far."""
        return float(self._sums[:, 1].sum()) / max(self.count, 1)

    @property
    def ece(self) -> float:
        """Expected calibration error so far."""
        return float(np.abs(self._sums[:, 0] - self._sums[:, 1]).sum()) / max(self.count, 1)


class Reporter(Protocol):
    """Shows the progress of an evaluation; a context manager that is called with events."""

    def __call__(self, event: ProgressEvent) -> None: ...
    def __enter__(self) -> Reporter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing: for evaluations that another program calls."""

    def __call__(self, event: ProgressEvent) -> None:
        return None

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Counter(Silent):
    """What both reporters share: counts, rate, and the running tallies of the data set and seed reported last."""

    def __init__(self) -> None:
        self.total = 0
        self.earlier = 0
        self.now = 0
        self.unreadable = 0
        self.where = ""
        self.tallies: dict[tuple[str, str], Tally] = {}
        # of each data set and seed: several processes are at work on several of them at a time
        self._tallies: dict[tuple[str, int], dict[tuple[str, str], Tally]] = {}
        self._started = time.monotonic()

    def __call__(self, event: ProgressEvent) -> None:
        if isinstance(event, Started):
            if self.total == 0:
                self._started = time.monotonic()
                self.earlier, self.total = event.done, event.total
                self._begin()
            return
        if isinstance(event, Repeated):
            self.total += event.images
            return
        self.where = f"{event.dataset}, seed {event.seed}"
        self.tallies = self._tallies.setdefault((event.dataset, event.seed), {})
        self.now += 1
        self.unreadable += not event.results
        for column, result in event.results.items():
            self.tallies.setdefault(column, Tally()).add(*result)
        self._show()

    def shown(self) -> list[tuple[str, Tally]]:
        """The first tallies, by method, or by method and prompt where there are several prompts."""
        several = len({prompt for prompt, _ in self.tallies}) > 1
        named = [(f"{method} · {prompt}" if several else method, t) for (prompt, method), t in self.tallies.items()]
        return named[:_SHOWN]

    @property
    def rate(self) -> float:
        """Images per second since the start."""
        return self.now / max(time.monotonic() - self._started, 1e-9)

    def pace(self) -> str:
        """Rate, time left and images that could not be read, in words; of this call, not of what was done before."""
        if self.now == 0:
            return f"{self.earlier} were done before" if self.earlier else ""
        left = (self.total - self.earlier - self.now) / self.rate
        rate = f"{self.rate:.1f} images/s" if self.rate >= 1 else f"{1 / self.rate:.1f} s per image"
        unreadable = f", {self.unreadable} unreadable" if self.unreadable else ""
        return f"{rate}, {duration(max(left, 0.0))} left{unreadable}"

    def _begin(self) -> None:
        """Called once, when it is known how many images were done before."""

    def _show(self) -> None:
        """Called after each image."""


class LogProgress(Counter):
    """A plain line every ten seconds, for logs."""

    def __init__(self, *, say: Callable[[str], None], seconds: float = LOG_SECONDS) -> None:
        super().__init__()
        self._say, self._seconds = say, seconds
        self._told = time.monotonic()

    def _begin(self) -> None:
        if 0 < self.earlier < self.total:
            self._say(f"{self.earlier}/{self.total} images are already done; {self.total - self.earlier} are left")

    def _show(self) -> None:
        if time.monotonic() - self._told < self._seconds:
            return
        self._told = time.monotonic()
        running = "; ".join(f"{name} {100 * t.accuracy:.1f} % (ECE {100 * t.ece:.1f})" for name, t in self.shown())
        self._say(f"{self.earlier + self.now}/{self.total} images, {self.pace()}; {self.where}: {running}")


class TerminalProgress(Counter):
    """A bar and a table that change in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
        )
        self._task = self._bar.add_task("images", total=None)
        self._live = Live(self._bar, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> TerminalProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _begin(self) -> None:
        if self.earlier < self.total:
            self._show()

    def _show(self) -> None:
        self._bar.update(
            self._task,
            total=self.total,
            completed=self.earlier + self.now,
            description=self.where or "images",
        )
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("so far", overflow="fold")
        for title in ("accuracy %", "ECE %"):
            table.add_column(title, justify="right", no_wrap=True)  # a narrow terminal wraps names, never digits
        for name, tally in self.shown():
            table.add_row(name, f"{100 * tally.accuracy:.2f}", f"{100 * tally.ece:.2f}")
        if len(self.tallies) > _SHOWN:
            table.add_row(f"… and {len(self.tallies) - _SHOWN} more", "", "")
        self._live.update(Group(self._bar, Text(self.pace()), table))
