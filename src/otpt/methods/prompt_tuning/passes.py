"""Passes of fixed size through the text tower, and what comes out of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from otpt.methods.prompt_tuning.text_side import TextSide


@dataclass(frozen=True)
class Tuned:
    """What tuning gives for B images.

    Attributes:
        logits: (B, C) of the clean view under the tuned context.
        contexts: (B, n, W) tuned contexts.
        skipped: (B,) whether the gradient was not finite, so that the image kept the initial context.
        mean_cosine: (B,) mean cosine similarity between the tuned text features of different classes.
        text_features: (B, T, D) of all texts, one for each class as a rule, if they were asked for.
    """

    logits: Tensor
    contexts: Tensor
    skipped: Tensor
    mean_cosine: Tensor
    text_features: Tensor | None = None


def in_passes(function: Callable[..., Tensor], *inputs: Tensor, size: int) -> Tensor:
    """``function`` over rows of ``inputs``, always exactly ``size`` rows at a time.

    The last pass is filled by repeating its last row and cut afterwards, so that shapes, and with them the
    rounding of matrix products, never depend on how many rows there are.
    """
    outputs = []
    rows = len(inputs[0])
    for start in range(0, rows, size):
        # made where it is used: an index from the host would have to be waited for
        indices = (torch.arange(start, start + size, device=each.device).clamp(max=rows - 1) for each in inputs)
        result = function(*(each[index] for each, index in zip(inputs, indices, strict=True)))
        outputs.append(result[: rows - start])
    return torch.cat(outputs)


def mean_cosine(text_features: Tensor) -> Tensor:
    """(Σ_{i≠j} e_i·e_j)/(C(C−1)) of unit rows: (…, C, D) → (…)."""
    classes = text_features.shape[-2]
    total = text_features.sum(dim=-2).square().sum(dim=-1)
    return (total - text_features.square().sum(dim=(-2, -1))) / (classes * (classes - 1))


def logits_and_extras(
    text: TextSide, clean: Sequence[Tensor], text_features: Tensor, *, keep_texts: bool = False
) -> Tensor:
    """Of b images with clean views (1, D) and text features (b, T, D): logits, mean cosine, texts, as one (b, …)."""
    logits = torch.stack([text.logits(each, own)[0] for each, own in zip(clean, text_features, strict=True)])
    texts = [text_features.flatten(1)] if keep_texts else []
    return torch.cat([logits, mean_cosine(text.class_features(text_features))[:, None], *texts], dim=1)


def split_extras(text: TextSide, answer: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """What :func:`logits_and_extras` joined: logits (B, C), mean cosines (B,), text features (B, T, D) or None."""
    classes = len(text.class_names)
    texts = answer[:, classes + 1 :]
    if texts.shape[1] == 0:
        return answer[:, :classes], answer[:, classes], None
    # in memory of their own: the last digits of a matrix product may depend on how its inputs are aligned
    own = texts.unflatten(1, text.text_features.shape).clone()
    return answer[:, :classes], answer[:, classes], own
