"""Training loop of prompts: few-shot images, SGD with momentum, one warm-up epoch, then a cosine schedule."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.data import Dataset
from otpt.errors import OtptError


def check_numbers(counts: Mapping[str, int], *, seed: int, learning_rate: float) -> None:
    """Raise ``OtptError`` for a count below 1, or an invalid seed or learning rate."""
    for name, count in counts.items():
        if count < 1:
            raise OtptError(f"The number of {name} is {count}; expected 1 or more.")
    if not 0 <= seed < 2**32:
        raise OtptError(f"The seed is {seed}; expected 0 to {2**32 - 1}.")
    if not 0 < learning_rate < math.inf:
        raise OtptError(f"The learning rate is {learning_rate}; expected a finite number above 0.")


def check_diverged(values: Iterable[Tensor], epoch: int, learning_rate: float) -> None:
    """Raise ``OtptError`` if a gradient or a trained value is not finite; ``epoch`` counts from 0."""
    if not all(bool(value.isfinite().all()) for value in values):
        raise OtptError(
            f"The training diverged in epoch {epoch + 1}: a gradient is not finite; use a smaller learning rate than "
            f"{learning_rate}."
        )


def few_shots(dataset: Dataset, shots: int, *, seed: int = 0) -> Dataset:
    """Return a random subset with ``shots`` images per class, or all images of smaller classes.

    The order within a class depends only on the seed, the class index and its images, so 8 shots are a subset of 16.
    """
    if shots < 1:
        raise OtptError(f"The number of shots is {shots}; expected 1 or more.")
    by_class: list[list[int]] = [[] for _ in dataset.class_names]
    for index, label in enumerate(dataset.labels):
        by_class[label].append(index)
    empty = [name for name, indices in zip(dataset.class_names, by_class, strict=True) if not indices]
    if empty:
        raise OtptError(
            f"{len(empty)} of {len(by_class)} classes of {dataset.name!r} have no training image, the first is "
            f"{empty[0]!r}; expected at least one image per class."
        )
    chosen: list[int] = []
    for label, indices in enumerate(by_class):
        chosen += _shuffled(indices, seed, label)[:shots]
    return dataset.in_order(chosen)


def _shuffled(indices: list[int], seed: int, label: int) -> list[int]:
    """Shuffle by sorting random keys, because ``random.random`` is reproducible across Python versions."""
    digest = hashlib.sha256(f"shots/{seed}/{label}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big"))
    return [index for _, index in sorted((draw.random(), index) for index in indices)]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training run.

    Attributes:
        shots: number of images per class.
        epochs: number of epochs.
        batch: number of images per step.
        learning_rate: initial learning rate after the warm-up.
        momentum, weight_decay: parameters of SGD.
        crops: number of precomputed views per image, clean view first, of which each epoch uses a random one (CoOp
            only; MaPLe draws a new crop in each epoch).
        seed: seed of the shots, the crops, the order and a random init.
        sigma: standard deviation of Gaussian noise on the views (CoOp only), for PromptSmooth's few-shot init.
        warm_up: learning rate of the first epoch.
    """

    shots: int = 16
    epochs: int = 50
    batch: int = 32
    learning_rate: float = 2e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    crops: int = 8
    seed: int = 0
    sigma: float = 0.0
    warm_up: float = 1e-5

    def __post_init__(self) -> None:
        counts = {"shots": self.shots, "epochs": self.epochs, "images in a batch": self.batch, "crops": self.crops}
        check_numbers(counts, seed=self.seed, learning_rate=self.learning_rate)

    def rate(self, epoch: int) -> float:
        """Return the learning rate: ``warm_up`` in epoch 0, then lr·½(1 + cos(π(e − 1)/epochs))."""
        if epoch == 0 and self.epochs > 1:
            return self.warm_up
        return self.learning_rate * (1 + math.cos(math.pi * max(epoch - 1, 0) / self.epochs)) / 2


COOP = Recipe()
"""Published hyperparameters of CoOp for 16 shots of ImageNet."""

MAPLE = Recipe(epochs=5, batch=4, learning_rate=3.5e-3)
"""Published hyperparameters of MaPLe for a single data set (base to novel)."""


@dataclass(frozen=True)
class Epoch:
    """Statistics of an epoch: mean training loss and accuracy."""

    number: int
    learning_rate: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Step:
    """Gradients of a batch's loss with respect to each tensor, and the batch's logits (B, C) and labels (B,)."""

    gradients: Sequence[Tensor]
    logits: Tensor
    labels: Tensor


def descend(
    tensors: Sequence[Tensor],
    count: int,
    step: Callable[[Tensor, int], Step],
    recipe: Recipe,
    on_epoch: Callable[[Epoch], None] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
) -> None:
    """Train tensors in place.

    Args:
        tensors: tensors to train.
        count: number of images.
        step: function of (image indices, epoch) that returns the gradients of a batch.
        recipe: hyperparameters.
        on_epoch: called after each epoch.
        optimiser: by default SGD with the recipe's momentum and weight decay.
    """
    optimiser = optimiser or torch.optim.SGD(
        tensors, lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = rate = recipe.rate(epoch)
        loss, hits = 0.0, 0
        for indices in torch.randperm(count, generator=generator).split(recipe.batch):
            done = step(indices, epoch)
            check_diverged(done.gradients, epoch, recipe.learning_rate)
            for tensor, gradient in zip(tensors, done.gradients, strict=True):
                tensor.grad = gradient
            optimiser.step()
            loss += float(F.cross_entropy(done.logits, done.labels, reduction="sum"))
            hits += int((done.logits.argmax(dim=-1) == done.labels).sum())
        if on_epoch is not None:
            on_epoch(Epoch(epoch + 1, rate, loss / count, hits / count))
