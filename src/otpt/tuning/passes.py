"""Passes of fixed size through the text tower, and what comes out of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from otpt.tuning.plan import TuningPlan


@dataclass(frozen=True)
class Tuned:
    """What tuning gives for B pictures.

    Attributes:
        logits: (B, C) of the clean view under the tuned context.
        contexts: (B, n, W) tuned contexts.
        skipped: (B,) whether the gradient was not finite, so that the picture kept the start context.
        mean_cosine: (B,) mean cosine similarity between the tuned texts of different classes.
    """

    logits: Tensor
    contexts: Tensor
    skipped: Tensor
    mean_cosine: Tensor


@dataclass(frozen=True)
class Judgement:
    """What is found of B pictures.

    Attributes:
        logits: (B, C) of the clean view under the start prompt.
        mean_cosine: (B,) of the texts there.
        tuned: what each plan gives.
    """

    logits: Tensor
    mean_cosine: Tensor
    tuned: Mapping[TuningPlan, Tuned]


def in_passes(function: Callable[..., Tensor], *inputs: Tensor, size: int) -> Tensor:
    """``function`` over rows of ``inputs``, always exactly ``size`` rows at a time.

    The last pass is filled by repeating its last row and cut afterwards, so that shapes, and with them the
    rounding of matrix products, never depend on how many rows there are.
    """
    outputs = []
    rows = len(inputs[0])
    for start in range(0, rows, size):
        index = torch.arange(start, start + size).clamp(max=rows - 1)
        result = function(*(each[index.to(each.device)] for each in inputs))
        outputs.append(result[: rows - start])
    return torch.cat(outputs)


def mean_cosine(text_features: Tensor) -> Tensor:
    """(Σ_{i≠j} e_i·e_j)/(C(C−1)) of unit rows: (…, C, D) → (…)."""
    classes = text_features.shape[-2]
    total = text_features.sum(dim=-2).square().sum(dim=-1)
    return (total - text_features.square().sum(dim=(-2, -1))) / (classes * (classes - 1))
