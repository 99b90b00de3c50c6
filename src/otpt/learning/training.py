"""How prompts are trained: few images per class, SGD with momentum, a first epoch at a small rate, then a cosine."""

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
    """``OtptError`` unless all counts are 1 or more, and the others can be used."""
    for name, count in counts.items():
        if count < 1:
            raise OtptError(f"The number of {name} is {count}; expected 1 or more.")
    if not 0 <= seed < 2**32:
        raise OtptError(f"The seed is {seed}; expected 0 to {2**32 - 1}.")
    if not 0 < learning_rate < math.inf:
        raise OtptError(f"The learning rate is {learning_rate}; expected a finite number above 0.")


def check_diverged(values: Iterable[Tensor], epoch: int, learning_rate: float) -> None:
    """``OtptError`` unless all values are finite: gradients, or what they have changed in epoch 0, 1, …."""
    if not all(bool(each.isfinite().all()) for each in values):
        raise OtptError(
            f"The training diverged in epoch {epoch + 1}: a gradient is not finite. Take a smaller learning rate than "
            f"{learning_rate}."
        )


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
    """Sort by random keys; ``random.random`` is the same in all versions of Python."""
    digest = hashlib.sha256(f"shots/{seed}/{label}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big"))
    return [index for _, index in sorted((draw.random(), index) for index in indices)]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training.

    Attributes:
        shots: images per class.
        epochs, batch: passes over the images, and images per step.
        learning_rate: after the first epoch; warm_up: of the first epoch.
        momentum, weight_decay: of SGD.
        crops: views of each image that features are computed of, the clean one first; each epoch takes one of them at
            random (CoOp only: MaPLe draws a new crop each time).
        sigma: of Gaussian noise on these views (CoOp only), for PromptSmooth's few-shot start.
        seed: of the shots, the crops, the order, and the start where that is random.
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
        """The warm-up rate in epoch 0, then lr·½(1 + cos(π(e − 1)/epochs))."""
        if epoch == 0 and self.epochs > 1:
            return self.warm_up
        return self.learning_rate * (1 + math.cos(math.pi * max(epoch - 1, 0) / self.epochs)) / 2


COOP = Recipe()
"""CoOp's published numbers for 16 shots of ImageNet: 50 epochs, batches of 32, lr 0.002."""

MAPLE = Recipe(epochs=5, batch=4, learning_rate=3.5e-3)
"""MaPLe's for one data set (base to novel): 5 epochs, batches of 4, lr 0.0035."""


@dataclass(frozen=True)
class Epoch:
    """Statistics of an epoch: mean loss and accuracy over the images as they were trained on."""

    number: int
    learning_rate: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Step:
    """Gradient of the batch's loss with respect to each tensor, and the batch's logits (B, C) and labels (B,)."""

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
    """Train ``tensors`` in place on ``count`` images: ``step(indices, epoch)`` differentiates the loss of a batch.

    ``optimiser`` is SGD with the recipe's momentum and weight decay by default.
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
