"""Learned prompts as users give them: a file, ``coop=`` and a file, or what was read from one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from otpt.errors import OtptError
from otpt.prompts.learned.checkpoints import read_learned
from otpt.prompts.learned.contexts import LearnedPrompt, context_alone

ALONE = "coop="
"""Before a file: take its context as one of CoOp, and nothing else of it."""

ContextSource: TypeAlias = "str | Path | LearnedPrompt"


def read_context(source: ContextSource) -> LearnedPrompt:
    """The learned prompt of a source."""
    if not isinstance(source, (str, Path)):
        return source
    learned = _read(Path(os.path.expanduser(str(source).removeprefix(ALONE))))
    return context_alone(learned) if str(source).startswith(ALONE) else learned


def read_contexts(sources: Sequence[ContextSource]) -> dict[str, LearnedPrompt]:
    """The learned prompts of several sources by the init that they are for: "coop", "cocoop", "maple"."""
    found: dict[str, LearnedPrompt] = {}
    for source in sources:
        learned = read_context(source)
        if learned.kind in found:
            raise OtptError(f"Two prompts of the kind {learned.kind!r} were given; expected one per data set.")
        found[learned.kind] = learned
    return found


def _read(path: Path) -> LearnedPrompt:
    try:
        state = path.stat()
    except OSError:
        return read_learned(path)  # says what is wrong
    return _read_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int, size: int) -> LearnedPrompt:
    """A file of MaPLe holds all of CLIP beside its prompts: it is not read again for each question."""
    return read_learned(path)
