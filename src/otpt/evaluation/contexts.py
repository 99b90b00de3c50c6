"""Learned prompts of an evaluation: which file serves which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from otpt.errors import OtptError
from otpt.runs.names import folder_name

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
    """The learned prompts of a data set, by the init that they are for: "coop", "cocoop", "maple"."""
    found: dict[str, LearnedPrompt] = {}
    inits = {method.init: method.name for method in methods if not method.starts_from_words}
    for source in sources:
        learned = read_context(source, dataset)
        if learned.kind in found:
            raise OtptError(f"Two prompts of the kind {learned.kind!r} were given; expected one per data set.")
        if learned.kind not in inits:
            raise OtptError(
                f"A prompt of the kind {learned.kind!r} was given, but no method starts from it; "
                f"{_suggestion(learned.kind, methods)}leave the prompt out."
            )
        found[learned.kind] = learned
    for init, name in inits.items():
        if init not in found:
            raise OtptError(
                f"Method {name!r} starts from a learned prompt of the kind {init!r}; give its file with --context (in "
                f"Python contexts=[…]), or make one with 'otpt train'."
            )
    return found


def _suggestion(kind: str, methods: Sequence[Method]) -> str:
    plain = next((method.name for method in methods if method.init == "words"), None)
    return "" if plain is None else f"take {kind + '+' + plain!r} in place of {plain!r}, or "


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
