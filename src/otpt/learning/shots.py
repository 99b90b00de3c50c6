"""A few labelled images of each class, drawn from a training set by a seed."""

from __future__ import annotations

import hashlib
import random

from otpt.data import Dataset
from otpt.errors import OtptError


def few_shots(dataset: Dataset, shots: int, *, seed: int = 0) -> Dataset:
    """``shots`` images of each class; all of a class that has fewer.

    The draw of a class depends on (seed, number of the class) and its images alone, so the first images of 16 shots
    are those of 8.
    """
    if shots < 1:
        raise OtptError(f"The number of shots is {shots}; expected 1 or more.")
    by_class: list[list[int]] = [[] for _ in dataset.class_names]
    for index, label in enumerate(dataset.labels):
        by_class[label].append(index)
    empty = [name for name, own in zip(dataset.class_names, by_class, strict=True) if not own]
    if empty:
        raise OtptError(
            f"{len(empty)} of {len(by_class)} classes of {dataset.name!r} have no image to learn from, the first is "
            f"{empty[0]!r}; expected at least one of each."
        )
    chosen = [index for label, own in enumerate(by_class) for index in _shuffled(own, seed, label)[:shots]]
    return dataset.in_order(chosen)


def _shuffled(indices: list[int], seed: int, label: int) -> list[int]:
    """In an order of random keys; ``random.random`` is promised to stay the same between Python's versions."""
    digest = hashlib.sha256(f"shots/{seed}/{label}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big"))
    return [index for _, index in sorted((draw.random(), index) for index in indices)]
