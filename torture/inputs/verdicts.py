"""How a case ended, and whether that is allowed: an answer, or one sentence."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import time
import traceback
import unicodedata
import warnings
from pathlib import Path
from types import FrameType

from otpt.errors import OtptError
from torture.inputs.kinds import Broken, Kind
from torture.inputs.watch import Watch
from torture.records import Case, Outcome

SECONDS = 10.0
"""Of the processor, for one case."""
MEMORY = 3 << 30
"""Bytes beyond what the process has when its cases begin."""

ANSWER, SENTENCE = "answer", "one sentence"
_LONGEST = 2010  # characters of a sentence


class TooSlow(BaseException):
    """Not an ``Exception``: nothing on the way may catch it."""


def limit_memory() -> None:
    """No more than :data:`MEMORY` beyond what the process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    bound = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))


def outcome_of(kind: Kind, seed: int, given: Path, watch: Watch) -> Outcome:
    """Make the input of a seed in the folder ``given``, read it, and judge what happened; the folder is deleted."""
    given.mkdir(parents=True)
    begun = time.monotonic()
    try:
        try:
            made = kind.make(random.Random(f"{kind.name} {seed}"), given)
        except Exception as error:  # a fault of the campaign, not of what it tries
            note = f"{type(error).__name__}: {_short(str(error))} {_where(error)}"
            return Outcome(Case(kind.name, seed), "could not be made", False, note)
        begun = time.monotonic()
        watch.begin(given)
        _start_timer()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.ask()
            result, note = ANSWER, ""
        except OtptError as error:
            result, note = judged_sentence(str(error))
        except Broken as error:
            result, note = "broken promise", str(error)
        except MemoryError as error:
            result, note = "out of memory", _where(error)
        except TooSlow as error:
            result, note = f"more than {SECONDS:g} s", _where(error)
        except BaseException as error:
            result, note = f"{type(error).__name__}", f"{_short(str(error))} {_where(error)}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        touched = watch.end()
    finally:
        watch.armed = False
        shutil.rmtree(given, ignore_errors=True)
    if touched:
        result, note = "touched what it must not", "; ".join(touched[:3])
    ok = result in (ANSWER, SENTENCE)
    return Outcome(Case(kind.name, seed, made.detail), result, ok, note, round(time.monotonic() - begun, 4))


def judged_sentence(message: str) -> tuple[str, str]:
    """The result and a note for the text of an ``OtptError``."""
    faults = []
    if len(message.splitlines()) != 1:
        faults.append("has not one line")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in message):
        faults.append("has control characters")
    if "Traceback" in message or "object at 0x" in message:
        faults.append("shows the inside")
    if not message.rstrip().endswith((".", "…", "?")) or len(message.split()) < 4:
        faults.append("is not a sentence")
    if len(message) > _LONGEST:
        faults.append(f"has {len(message):,} characters")
    if faults:
        return "a sentence that " + " and ".join(faults), _short(message)
    return SENTENCE, ""


def _start_timer() -> None:
    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)


def _where(error: BaseException) -> str:
    """The last lines of our own on the way to an exception."""
    frames = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    return f"({' > '.join(frames[-6:])})"


def _short(text: str) -> str:
    return ascii(text[:300])
