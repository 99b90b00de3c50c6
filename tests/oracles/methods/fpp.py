"""FPP's pre-training the literal way: all 77 token vectors of every class through open_clip's own modules, torch's
cosine in the loss, torch's AdamW under torch's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WORDS = "a photo of a"


def texts(model: Any, ids: Tensor, embeddings: Tensor) -> Tensor:
    """Unit features of token vectors (C, 77, W)."""
    x = model.transformer(embeddings + model.positional_embedding, attn_mask=model.attn_mask)
    x = model.ln_final(x)
    x = x[torch.arange(len(x)), ids.argmax(dim=-1)] @ model.text_projection
    return x / x.norm(dim=-1, keepdim=True)


def literal_fpp(
    model: Any,
    tokenizer: Any,
    names: Sequence[str],
    start: Tensor | None,
    noises: Sequence[tuple[Tensor, Tensor]],
    *,
    weight: float,
    steps: int,
    total: int,
) -> Tensor:
    """The context (4, W) after ``steps`` of ``total`` steps.

    ``noises``: for each step standard normal numbers on the context (N, 4, W) and on all positions (N, 77, W), of which
    the context's own positions are not used.
    """
    ids = tokenizer([f"{WORDS} {name}." for name in names])
    with torch.no_grad():
        embedded = model.token_embedding(ids)
        target = model.encode_text(ids)
        target = target / target.norm(dim=-1, keepdim=True)
    context = (embedded[0, 1:5] if start is None else start).clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total, eta_min=1e-4)
    for on_context, on_tokens in noises[:steps]:
        vectors = torch.cat([embedded[:, :1], context.expand(len(ids), -1, -1), embedded[:, 5:]], dim=1)
        clean = texts(model, ids, vectors)
        cosines = []
        with torch.no_grad():
            for n in range(len(on_context)):
                moved = torch.cat(
                    [
                        embedded[:, :1] + 0.02**0.5 * on_tokens[n, :1],
                        (context + 0.005**0.5 * on_context[n]).expand(len(ids), -1, -1),
                        embedded[:, 5:] + 0.02**0.5 * on_tokens[n, 5:],
                    ],
                    dim=1,
                )
                cosines.append(texts(model, ids, moved))
        flat = sum(F.cosine_similarity(clean, noisy, dim=-1).sum() for noisy in cosines) / (len(cosines) * len(ids))
        loss = sum((row - goal).pow(2).sum() for row, goal in zip(clean, target, strict=True)) / len(ids)
        loss = loss - weight * flat
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return context.detach()
