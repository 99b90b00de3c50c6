"""Text sides without a backbone: of text features, or of a function that encodes a context."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.errors import OtptError
from otpt.methods.prompt_tuning import TextSide
from otpt.prompts import MEMORY_BUDGET, FixedEncoder, PromptEncoder

Encoder = Callable[[Tensor], Tensor]
"""A context (n, W) → text features (C, D), differentiable."""


class _GivenTexts(TextSide):
    """The text side of an encoder that the caller brings."""

    def __init__(self, encoder: PromptEncoder, init: Tensor, classes: int, scale: float, bias: float) -> None:
        names = tuple(str(i) for i in range(classes))
        self._prepare(names, encoder, init, scale, bias, contexts_per_pass=1)

    def part_encoder(self, texts: Tensor) -> PromptEncoder:
        """There is none: a function of the caller's encodes all classes at once."""
        raise OtptError(
            "frozen-below leaves classes out of the text tower; a function that encodes all of them cannot. Leave it "
            "out."
        )


class _CallbackEncoder(PromptEncoder):
    """The caller's function, context by context."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        # what its graph takes is not known; one byte, so that it is kept
        super().__init__([torch.arange(classes)], graph_bytes=1, memory_budget=MEMORY_BUDGET)
        self._encoder = encoder

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        return torch.stack([self._encoder(context) for context in contexts])


def given_text_side(
    texts: Tensor | Encoder, context: Tensor | None, views: Tensor, scale: float, bias: float
) -> TextSide:
    """The text side of text features (C, D), or of an encoder at an initial context (n, W)."""
    if isinstance(texts, Tensor):
        _check_texts(texts, views)
        fixed = F.normalize(texts.detach(), dim=-1)
        return _GivenTexts(FixedEncoder(fixed), texts.new_empty(0, 1), len(texts), scale, bias)
    if context is None or context.ndim != 2:
        given = "no context" if context is None else f"a context of shape {tuple(context.shape)}"
        raise OtptError(f"A function that encodes contexts came with {given}; expected context= of shape (n, W).")
    with torch.no_grad():
        first = texts(context)
    _check_texts(first, views)
    return _GivenTexts(_CallbackEncoder(texts, len(first)), context.detach().clone(), len(first), scale, bias)


def _check_texts(texts: Tensor, views: Tensor) -> None:
    if texts.ndim != 2 or len(texts) < 2 or texts.shape[1] != views.shape[2]:
        raise OtptError(
            f"Text features of shape {tuple(texts.shape)} and views of shape {tuple(views.shape)} were given; expected "
            "(C, D) with two classes or more, and (B, V, D)."
        )


def check_views(view_features: Tensor) -> Tensor:
    """View features as (B, V, D), of norm one."""
    views = view_features[None] if view_features.ndim == 2 else view_features
    if views.ndim != 3 or not views.is_floating_point() or views.numel() == 0:
        raise OtptError(
            f"View features of shape {tuple(view_features.shape)} and type {view_features.dtype} were given; expected "
            "floats, (B, V, D) or (V, D) with the clean view first."
        )
    norms = views.norm(dim=-1)
    if not bool(((norms - 1).abs() < 1e-2).all()):
        raise OtptError("View features are not of norm one; divide them by their norm along the last dimension.")
    return views.detach()
