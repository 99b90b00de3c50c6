"""View selection and weighting: Tsallis entropy, ADTE, GS-Bias, view weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from otpt.methods.caches import in_first_row
from otpt.objectives import entropy_of_mean, fraction_of, select_fraction, view_entropies
from otpt.registry import (
    Count,
    Fraction,
    NonNegative,
    Probability,
    Rounds,
    State,
    adaptation,
    aggregation,
    carried,
)
from otpt.threads import cancellable_loop

Order = Annotated[float, Field(gt=0, lt=10)]

_ADTE = "ICLR 2026, arXiv 2602.11743"
_SLOTS, _MARGIN, _TRUSTED = 20, 1.0, 100
"""ADTE: stored logits per class, their minimum margin, and the minimum number of images for the class bias."""


@aggregation(source=_ADTE)
def tsallis(probabilities: Tensor, tsallis_order: Order = 0.1, tsallis_ratio: Fraction = 0.1) -> Tensor:
    """The mean prediction of the views of smallest Tsallis entropy.

    Mean softmax of the int(V·ratio) views with the smallest (1 − Σ_c p_c^q)/(q − 1), q = ``tsallis_order``; q = 1 is
    Shannon's. (V, C) → (C,).
    """
    if tsallis_order == 1:
        scores = torch.special.entr(probabilities).sum(dim=1)
    else:
        scores = (1 - probabilities.pow(tsallis_order).sum(dim=1)) / (tsallis_order - 1)
    chosen = scores.argsort(stable=True)[: fraction_of(len(probabilities), tsallis_ratio)]
    return probabilities[chosen].mean(dim=0)


@aggregation(source="Shanmugam et al., CVPR 2025, arXiv 2505.22764; two weights are ours")
def view_weights(logits: Tensor, clean_weight: NonNegative = 0.5, rest_weight: NonNegative = 0.5) -> Tensor:
    """softmax(a·ℓ_0 + b·mean_v ℓ_v) of the clean view and the augmented ones, with weights learned from labels.

    (V, C) → (C,). a = ``clean_weight`` and b = ``rest_weight``; fit them on images that no calibration uses.
    """
    rest = logits[1:].mean(dim=0) if len(logits) > 1 else logits[0]
    return (clean_weight * logits[0] + rest_weight * rest).softmax(dim=-1)


@dataclass
class _Bank:
    """State of ADTE: predictions (C, n, C) of confident images by predicted class, and their margins (C, n).

    Margins are −1 for missing entries; ``orders`` are the orders of :func:`adte_released` after its first pass.
    """

    predictions: Tensor
    margins: Tensor
    orders: Tensor | None = None

    @classmethod
    def empty(cls, logits: Tensor) -> _Bank:
        """Return a bank in the type of logits (V, C)."""
        classes = logits.shape[1]
        return cls(logits.new_zeros(classes, _SLOTS, classes), logits.new_full((classes, _SLOTS), -1.0))

    @property
    def present(self) -> Tensor:
        """Mask (C, n) of existing entries."""
        return self.margins >= 0

    def store(self, logits: Tensor) -> None:
        """Store the mean logits of an image under their label if the margin is large."""
        mean = logits.mean(dim=0)
        label, (first, second) = int(mean.argmax()), mean.topk(2).values
        if float(first - second) >= _MARGIN:
            slot = int(self.margins[label].argmin())
            self.predictions[label, slot] = mean.softmax(dim=-1)
            self.margins[label, slot] = first - second


# The online branch of the released code stops with an error.
@adaptation(
    source=f"{_ADTE}; the class bias follows the stream, as the paper says",
    caution="its scores prefer views of rare classes, and its published numbers come from a pass over the test set.",
)
def adte(logits: Tensor, state: State, adte_ratio: Fraction = 0.1) -> Tensor:
    """ADTE: the mean prediction of views chosen by a Tsallis entropy whose order depends on the class.

    Score of a view: Σ_c p_c^{q_c}/(1 − q_c); the int(V·ratio) smallest are averaged. q_c runs from 0.01 to 0.9 with
    log π_c, π the leading eigenvector of the mean predictions of confident images by predicted class (20 per class,
    after each image). Shannon's entropy is the score until 100 images are stored. The state holds 20·C² numbers.
    Returns log p (V, C): the first row is the prediction, further views keep their own.
    """
    bank = carried(state, "bank", lambda: _Bank.empty(logits))
    trusted = int(bank.present.sum()) >= _TRUSTED
    orders = class_orders(bank.predictions, bank.present) if trusted else None
    adapted = _adte_mean(logits, orders, adte_ratio)
    bank.store(logits)
    return adapted


@adaptation(
    source=f"{_ADTE}; as released, the class bias comes from a first pass over the whole set",
    caution="it sees all images of a set before it predicts the first: its numbers are those of a set, not of images "
    "one by one.",
)
def adte_released(logits: Tensor, state: State, first_pass: bool, adte_ratio: Fraction = 0.1) -> Tensor:
    """ADTE as released: the class bias of :func:`adte` is estimated in a first pass over all images, then fixed."""
    bank = carried(state, "bank", lambda: _Bank.empty(logits))
    if first_pass:
        bank.store(logits)
        return logits
    if bank.orders is None:
        bank.orders = class_orders(bank.predictions, bank.present)
    return _adte_mean(logits, bank.orders, adte_ratio)


def _adte_mean(logits: Tensor, orders: Tensor | None, ratio: float) -> Tensor:
    """Return log p (V, C): the mean prediction of the lowest-scoring views in row 0, each view's own in the others."""
    probabilities = logits.softmax(dim=-1)
    scores = view_entropies(logits) if orders is None else (probabilities.pow(orders) / (1 - orders)).sum(dim=1)
    chosen = scores.argsort(stable=True)[: fraction_of(len(logits), ratio)]
    mean = probabilities[chosen].mean(dim=0).clamp(min=torch.finfo(logits.dtype).tiny).log()
    return in_first_row(mean, logits.log_softmax(dim=-1))


def class_orders(bank: Tensor, present: Tensor) -> Tensor:
    """Compute ADTE's orders q (C,) from the ``present`` (C, n) predictions (C, n, C) by predicted class."""
    counts = present.sum(dim=1).clamp(min=1)
    matrix = ((bank * present[..., None]).sum(dim=1) / counts[:, None]).mT  # column j: mean prediction of label j
    bias = torch.full_like(matrix[0], 1 / len(matrix))
    for _ in cancellable_loop(range(500)):
        moved = matrix @ bias
        if not bool(moved.any()):  # nothing is stored
            break
        moved = moved / moved.norm()
        if float((moved - bias).norm()) < 1e-4:
            break
        bias = moved
    logs = bias.clamp(min=torch.finfo(bias.dtype).tiny).log()
    spread = logs.max() - logs.min()
    return 0.01 + 0.89 * (logs - logs.min()) / spread if float(spread) > 0 else torch.full_like(logs, 0.01)


@adaptation(
    source="ICML 2025 (GS-Bias), its global part",
    caution="its rate was published by data set and must be assumed to be chosen on the test images; --set bias-rate=1 "
    "takes the same everywhere.",
    settings={
        "bias_rate": {
            "imagenet": 10, "imagenet-r": 50, "caltech101": 5, "aircraft": 1, "pets": 1, "flowers102": 1, "cars": 10,
            "others": 1,
        },
        "bias_steps": {"imagenet": 1, "others": 5},
        "bias_views": {"imagenet": 64, "fine-grained": 8, "shift": 64},
        "bias_ratio": {"imagenet": 0.1, "fine-grained": 0.5, "shift": 0.1},
    },
)  # fmt: skip
def gs_bias(
    logits: Tensor,
    bias_rate: NonNegative = 1.0,
    bias_steps: Rounds = 5,
    bias_views: Count = 64,
    bias_ratio: Fraction = 0.5,
    bias_momentum: Probability = 0.1,
) -> Tensor:
    """GS-Bias, global part: gradient steps on one number per class that is added to the logits of all views.

    ℓ + 0.9·b + 0.1·h, where b minimises the entropy of the mean prediction of the most confident of the first
    ``bias_views`` views and h is the sum of the step before. The steps end early if the entropy has changed by more
    than a quarter. The spatial part needs features of patches and is left out. (V, C) → (V, C).
    """
    views, keep = logits[:bias_views], 1 - bias_momentum
    bias = before = torch.zeros_like(logits[0])
    first = 0.0
    for step in cancellable_loop(range(bias_steps)):
        shift = keep * bias + bias_momentum * before
        chosen = select_fraction(views + shift, bias_ratio)
        with torch.enable_grad():
            leaf = shift.clone().requires_grad_()
            loss = entropy_of_mean(views[chosen] + leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
        entropy = float(loss.detach())
        if step == 0:
            first = entropy
        elif abs(entropy - first) > 0.25 * first:
            break
        before, bias = shift, bias - bias_rate * (1.0 if step == 0 else keep) * gradient
    return logits + keep * bias + bias_momentum * before
