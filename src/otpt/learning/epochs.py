"""The loop around a training: one line per epoch; after an interruption it resumes after the last finished epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from otpt.methods.inits.trained_files import read_trained, write_trained

Say = Callable[[str], None]


class Trainer(Protocol):
    """One training. What an epoch does depends on its number and on :meth:`state` alone."""

    epochs: int

    def epoch(self, number: int) -> str:
        """Run epoch ``number`` = 0, 1, …; returns what to report."""

    def state(self) -> dict[str, Tensor]:
        """All that the next epoch starts from."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""


def run_epochs(trainer: Trainer, *, key: str, checkpoint: Path | None = None, say: Say | None = None) -> None:
    """Run all epochs.

    Args:
        key: names what is trained on what; a checkpoint of another key is not used.
        checkpoint: where the state is kept after each epoch; deleted at the end.
        say: called with one line per epoch.
    """
    first = 0
    if checkpoint is not None and checkpoint.is_file():
        kept = read_trained(checkpoint)
        if kept.notes.get("key") == key:
            trainer.restore(dict(kept.tensors))
            first = int(kept.notes["epoch"]) + 1
            if say is not None:
                say(f"resuming after epoch {first} of {trainer.epochs}")
    for number in range(first, trainer.epochs):
        words = trainer.epoch(number)
        if checkpoint is not None:
            write_trained(checkpoint, trainer.state(), {"key": key, "epoch": number})
        if say is not None:
            say(f"epoch {number + 1} of {trainer.epochs}: {words}")
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
