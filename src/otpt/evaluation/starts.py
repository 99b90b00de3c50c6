"""Learned prompts of an evaluation: which file serves which data set, and under which name the rows stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.prompts.learned import LearnedPrompt

PLACE = "{dataset}"
ALONE = "coop="
"""Before a file: take its context as one of CoOp, and nothing else of it."""

ContextSource: TypeAlias = "str | Path | LearnedPrompt"
"""A file, a pattern of files with ``{dataset}`` in it, either after ``coop=``; or what was read from one."""


def find_contexts(
    sources: Sequence[ContextSource], dataset: str, methods: Sequence[Method]
) -> Mapping[str, LearnedPrompt]:
    """The learned prompts of a data set, by the start that they are for: "coop", "cocoop", "maple"."""
    found: dict[str, LearnedPrompt] = {}
    starts = {method.start: method.name for method in methods if method.start != "words"}
    for source in sources:
        learned = read_context(source, dataset)
        if learned.kind in found:
            raise OtptError(f"Two prompts of the kind {learned.kind!r} were given; expected one a data set.")
        if learned.kind not in starts:
            raise OtptError(
                f"A prompt of the kind {learned.kind!r} was given, but no method starts from it; take {learned.kind!r} "
                f"or {learned.kind + '+o-tpt'!r}, or leave the prompt out."
            )
        found[learned.kind] = learned
    for start, name in starts.items():
        if start not in found:
            raise OtptError(
                f"Method {name!r} starts from a learned prompt of the kind {start!r}; give its file with --context (in "
                f"Python contexts=[…]), or make one with 'otpt train'."
            )
    return found


def column_names(prompts: Sequence[str], methods: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """(prompt, method) of the rows of a picture, in their order; ``methods`` are (name, start).

    A method that starts from a learned prompt has one row whatever the words, under the name of its start.
    """
    first = tuple((prompts[0] if start == "words" else start, name) for name, start in methods)
    return first + tuple((prompt, name) for prompt in prompts[1:] for name, start in methods if start == "words")


def learned_numbers(contexts: Mapping[str, LearnedPrompt], two_tower_views: str) -> dict[str, Any]:
    """What a run's configuration says of a data set's learned prompts; nothing where there are none."""
    from otpt.prompts.learned import fingerprint

    views = {"two_tower_views": two_tower_views} if "maple" in contexts else {}
    return {"contexts": {start: fingerprint(each) for start, each in contexts.items()}, **views} if contexts else {}


def folder_name(name: str) -> str:
    """A data set's name as a file may be called: ``emoji/food`` → ``emoji-food``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"


def read_context(source: ContextSource, dataset: str) -> LearnedPrompt:
    """The learned prompt that a source has for a data set."""
    from otpt.prompts.learned import context_alone

    if not isinstance(source, (str, Path)):
        return source
    alone = str(source).startswith(ALONE)
    learned = _read(Path(str(source).removeprefix(ALONE).replace(PLACE, folder_name(dataset))).expanduser())
    return context_alone(learned) if alone else learned


def _read(path: Path) -> LearnedPrompt:
    from otpt.prompts.learned import read_learned

    try:
        state = path.stat()
    except OSError:
        return read_learned(path)  # says what is wrong
    return _read_once(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int, size: int) -> LearnedPrompt:
    """A file of MaPLe holds all of CLIP beside its prompts: it is not read again for each question."""
    from otpt.prompts.learned import read_learned

    return read_learned(path)
