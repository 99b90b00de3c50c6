"""Cases in processes of their own, a batch at a time: what crashes or hangs costs one case, and is named."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from torture.inputs.kinds import kind_named
from torture.inputs.verdicts import limit_memory, outcome_of
from torture.inputs.watch import Watch
from torture.records import Case, Outcome

WALL_SECONDS = 300.0
"""After so long without a word a process counts as hanging; generous, since the machine may be busy."""

_DECOYS = ("secret.txt", "secret.jpg", "secret.pt", "config.json", "classes.txt", "victim.parquet")
_numbers = count()


def judged(batch: Sequence[tuple[str, int]], folder: Path) -> Iterator[Outcome]:
    """The outcome of each (kind, seed) of a batch, in order."""
    for name in dict.fromkeys(name for name, _ in batch):
        kind_named(name).prepare()
    rest = list(batch)
    while rest:
        place = folder / f"batch-{next(_numbers)}"
        done = 0
        for outcome in _run(rest, place):
            done += 1
            yield outcome
        rest = rest[done:]


def _run(batch: Sequence[tuple[str, int]], place: Path) -> Iterator[Outcome]:
    """Outcomes from a child process; the last one says so if the child was lost on it."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, but none is at work
        child = os.fork()
    if child == 0:
        os.close(reading)
        _work(batch, place, writing)
    os.close(writing)
    yielded, buffer, begun, status = 0, b"", time.monotonic(), None
    try:
        while yielded < len(batch):
            ready, _, _ = select.select([reading], [], [], WALL_SECONDS)
            part = os.read(reading, 1 << 16) if ready else b""
            if not part:
                kind, seed = batch[yielded]
                if not ready:
                    os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                what = "hangs" if not ready else _end(status)
                yield Outcome(Case(kind, seed), what, ok=False, seconds=time.monotonic() - begun)
                return
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                yield _outcome(json.loads(line))
                yielded, begun = yielded + 1, time.monotonic()
    finally:
        os.close(reading)
        if status is None:
            if yielded < len(batch):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _work(batch: Sequence[tuple[str, int]], place: Path, writing: int) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        outside, here = _prepare(place)
        watch = Watch(outside)
        before = _snapshot(outside, here)
        limit_memory()
        for number, (name, seed) in enumerate(batch):
            outcome = outcome_of(kind_named(name), seed, place / "given" / str(number), watch)
            if _snapshot(outside, here) != before:
                after = _snapshot(outside, here)
                note = f"changed: {sorted(dict(before.items() ^ after.items()))}"
                outcome = Outcome(outcome.case, "touched what it must not", False, note, outcome.seconds)
                before = after
            os.write(writing, json.dumps(asdict(outcome)).encode() + b"\n")
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _prepare(place: Path) -> tuple[Path, Path]:
    """A folder of decoys beside the given ones, an empty one to stand in; nothing is kept elsewhere."""
    outside, here = place / "outside", place / "here"
    for folder in (outside, here, place / "given"):
        folder.mkdir(parents=True)
    for name in _DECOYS:
        (outside / name).write_bytes(b"not yours")
    os.chdir(here)
    sys.dont_write_bytecode = True
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return outside, here


def _snapshot(*folders: Path) -> dict[str, Any]:
    return {
        item.path: (item.stat(follow_symlinks=False).st_size, item.stat(follow_symlinks=False).st_mtime_ns)
        for folder in folders
        for item in os.scandir(folder)
    }


def _outcome(values: dict[str, Any]) -> Outcome:
    return Outcome(**{**values, "case": Case(**values["case"])})


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with {os.waitstatus_to_exitcode(status)}"
