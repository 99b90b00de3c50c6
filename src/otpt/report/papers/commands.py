"""The commands that a plan stands for, as anybody could give them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from otpt.report.papers.plans import Conditions, PlannedRun

_WIDTH = 80


def evaluate_command(run: PlannedRun, conditions: Conditions, model: str, further: Sequence[str] = ()) -> list[str]:
    """The words of ``otpt evaluate …`` that does what a run of a plan does, into the same folder.

    Args:
        model: the specification of the backbone.
        further: options that the plan does not know, such as the precision.
    """
    words = ["otpt", "evaluate", run.dataset, "--data", str(conditions.data), "--official-names", "--backbone", model]
    words += ["--methods", *run.methods, "--seeds", *map(str, run.seeds), "--official-precision"]
    if run.augmix is not None:
        words.append("--augmix" if run.augmix else "--no-augmix")
    words += ["--views", str(conditions.views)]
    if conditions.limit is not None:
        words += ["--limit", str(conditions.limit)]
    return [*words, *further, "--out", str(run.folder)]


def shell_loop(runs: Sequence[PlannedRun], conditions: Conditions, model: str, further: Sequence[str] = ()) -> str:
    """The commands of runs that differ in their data sets alone, as a loop of a shell in lines of 80 characters."""
    words = [shlex.quote(word) for word in evaluate_command(runs[0], conditions, model, further)]
    words[2] = "$set"
    words[-1] = f"{shlex.quote(str(runs[0].folder.parent))}/$set"
    names = [shlex.quote(run.dataset) for run in runs]
    return f"{_wrapped(['for', 'set', 'in', *names])}; do\n{_wrapped(words, '  ')}\ndone"


def _wrapped(words: Sequence[str], indent: str = "") -> str:
    lines, line = [], indent
    for word in words:
        if line.strip() and len(line) + len(word) + 6 > _WIDTH:
            lines.append(f"{line.rstrip()} \\")
            line = f"{indent}    "
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])
