"""The commands that a plan stands for, as anybody could give them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from otpt.data.registered.entry import find_entry
from otpt.report.papers.plans import Conditions, PlannedRun

_WIDTH = 80


def evaluate_command(run: PlannedRun, conditions: Conditions, model: str, further: Sequence[str] = ()) -> list[str]:
    """The words of ``otpt evaluate …`` that does what a run of a plan does, into the same folder.

    Args:
        model: the specification of the backbone.
        further: options that the plan does not know, such as the precision.
    """
    words = ["otpt", "evaluate", run.dataset, "--data", str(conditions.data)]
    entry = find_entry(run.dataset)
    if entry is not None and entry.official_swap is not None:
        words.append("--official-names")
    words += ["--backbone", model, "--methods", *run.methods, "--seeds", *map(str, run.seeds), "--official-precision"]
    if run.augmix is not None:
        words.append("--augmix" if run.augmix else "--no-augmix")
    words += ["--views", str(conditions.views)]
    if conditions.limit is not None:
        words += ["--limit", str(conditions.limit)]
    return [*words, *further, "--out", str(run.folder)]


def shell_loops(
    runs: Sequence[PlannedRun], conditions: Conditions, model: str, further: Sequence[str] = ()
) -> list[str]:
    """The commands of runs as loops of a shell, one for those that differ in their data sets alone; 80 columns."""
    loops: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        words = [shlex.quote(word) for word in evaluate_command(run, conditions, model, further)]
        words[2], words[-1] = "$set", f"{shlex.quote(str(run.folder.parent))}/$set"
        loops.setdefault(tuple(words), []).append(run.dataset)
    return [
        f"{_wrapped(['for', 'set', 'in', *names])}; do\n{_wrapped(words, '  ')}\ndone" for words, names in loops.items()
    ]


def _wrapped(words: Sequence[str], indent: str = "") -> str:
    lines, line = [], indent
    for word in words:
        if line.strip() and len(line) + len(word) + 6 > _WIDTH:
            lines.append(f"{line.rstrip()} \\")
            line = f"{indent}    "
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])
