"""DynaPrompt and HisTPT: reference values, and literal loops over autograd and torch's optimisers to 1e-10."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.errors import OtptError
from otpt.methods import get_method
from otpt.methods.prompt_streams import (
    dyna_prompt,
    fused,
    his_tpt,
    select_as_released,
    select_prompts,
)
from otpt.methods.state import PromptState, state_of_texts
from otpt.registry import Component

EXACT = {"rtol": 0, "atol": 1e-10}
SCALE, CLASSES, WIDTH, TOKENS, VIEWS = 20.0, 5, 7, 3, 20


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASE, MIX, START = draw(CLASSES, WIDTH, seed=0), draw(TOKENS * 4, WIDTH, seed=1), draw(TOKENS, 4, seed=2)


def encoder(context: Tensor) -> Tensor:
    """A text tower: (m, W) → unit (C, D), not linear in the context."""
    return normalize(torch.tanh(BASE + 0.5 * (context.flatten() @ MIX)) + 0.1 * BASE, dim=-1)


def prompts() -> PromptState:
    return state_of_texts(encoder, START, draw(1, VIEWS, WIDTH, seed=3), logit_scale=SCALE, logit_bias=0.0)


def stream(count: int) -> list[Tensor]:
    clean = [encoder(START)[i % CLASSES] + 0.4 * draw(WIDTH, seed=10 + i) for i in range(count)]
    noise = [0.5 * draw(VIEWS, WIDTH, seed=500 + i) for i in range(count)]
    return [normalize(torch.cat([c[None], c + n[1:]]), dim=-1) for c, n in zip(clean, noise, strict=True)]


def entropies(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def run(function: Any, images: list[Tensor], **settings: Any) -> list[Tensor]:
    state: dict[str, Any] = {}
    shared = prompts()
    found = []
    for views in images:
        logits = SCALE * views @ encoder(START).T
        available = {"features": views, "logits": logits, "prompt_state": shared, "state": state}
        rows = Component("", function).call(available, settings)
        assert torch.equal(rows[1:], logits[1:])
        found.append(rows[0])
    return found


def literal_dyna(images: list[Tensor], count: int, rate: float, *, released: bool) -> list[Tensor]:
    offsets = torch.nn.Parameter(torch.zeros(count, *START.shape, dtype=torch.float64))
    order, used, found = list(range(count)), [0] * count, []
    for views in images:
        if used.count(0) == 0:
            with torch.no_grad():
                offsets[order[0]] = 0
            used[order[0]] = 0
        texts = torch.stack([encoder(START + offset) for offset in offsets])
        logits = SCALE * torch.einsum("vd,ncd->nvc", views, texts)
        h = entropies(logits).mean(1).tolist()
        highest = logits.max(-1).values
        g = (highest[:, 0] - highest[:, 1:].mean(1)).tolist()
        oldest = order[0]
        if released:
            by_h = sorted(range(count), key=lambda j: -h[j])
            by_g = sorted(range(count), key=lambda j: -g[j])
            q = by_h.index(oldest)
            agreed = sorted(set(by_h[min(q + 1, count - 1) :]) & set(by_g[:q]))
            tuned = [by_h[j] for j in agreed] + [oldest]
        else:
            tuned = [j for j in range(count) if h[j] < h[oldest] and g[j] > g[oldest]] + [oldest]
        for j in tuned:
            order.remove(j)
            order.append(j)
            used[j] += 1
        chosen = entropies(logits[tuned]).mean(0).argsort()[: int(VIEWS * 0.1)]
        mean = logits[tuned][:, chosen].softmax(-1).mean(1)
        optimiser = torch.optim.AdamW([offsets], lr=rate)
        (-(mean * mean.log()).sum(-1).mean()).backward()
        optimiser.step()
        offsets.grad = None
        with torch.no_grad():
            tuned_texts = [encoder(START + offsets[j]) for j in tuned]
            found.append(torch.stack([SCALE * views[0] @ each.T for each in tuned_texts]).mean(0))
    return found


@pytest.mark.parametrize("released", [False, True])
def test_dyna_prompt_is_the_literal_one(released: bool) -> None:
    """Long enough that contexts are reset and several are tuned at once."""
    images = stream(25)
    found = run(dyna_prompt, images, dyna_prompts=4, dyna_rate=0.05, dyna_released=released)
    expected = literal_dyna(images, 4, 0.05, released=released)
    for own, literal in zip(found, expected, strict=True):
        torch.testing.assert_close(own, literal, **EXACT)
    other = literal_dyna(images, 4, 0.05, released=not released)
    assert max(float((a - b).abs().max()) for a, b in zip(expected, other, strict=True)) > 1e-3


def test_selected_contexts() -> None:
    h, g = torch.tensor([0.9, 0.5, 0.7, 0.3]), torch.tensor([0.1, 0.4, 0.2, 0.3])
    assert select_as_released(h, g, 2) == [2, 2]
    assert select_prompts(h, g, 2) == [1, 3, 2]
    equal = torch.zeros(4)
    assert select_prompts(equal, equal, 1) == [1]
    assert select_as_released(equal, equal, 0) == [0]


def literal_his(images: list[Tensor], size: int, hard_count: int) -> list[Tensor]:
    context = torch.nn.Parameter(START.clone())
    optimiser = torch.optim.SGD([context], lr=5e-3, momentum=0.9, weight_decay=1e-4)
    local: list[Tensor] = []
    hard: list[Tensor] = []
    old: list[Tensor] = []
    ema, found = torch.zeros(()), []
    for views in images:
        texts = encoder(context)
        logits = SCALE * views @ texts.T
        with torch.no_grad():
            memories = [ema, torch.stack(local).mean(0), torch.stack(hard).mean(0)] if local else [texts] * 3
            p = [(SCALE * views[0] @ normalize(each, dim=-1).T).softmax(-1) for each in memories]
            w = torch.stack([(each * each.log()).sum() for each in p]).softmax(0)
            target = sum(weight * each for weight, each in zip(w, p, strict=True))
        chosen = entropies(logits).argsort()[: int(VIEWS * 0.1)]
        loss = -(target * logits[chosen].log_softmax(-1)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            tuned, h = encoder(context), entropies(logits[chosen]).mean()
            if not local:
                local, hard, old, ema = [tuned] * size, [tuned] * size, [h] * size, tuned
            else:
                local, old = [tuned, *local[:-1]], [h, *old[:-1]]
                top = sorted(range(size), key=lambda i: -float(old[i]))[:hard_count]
                hard = [torch.stack([local[i] for i in top]).mean(0), *hard[:-1]]
                ema = 0.99 * ema + 0.01 * 0.5 * (torch.stack(local).mean(0) + torch.stack(hard).mean(0))
            found.append(SCALE * views[0] @ tuned.T)
    return found


def test_his_tpt_is_the_literal_one() -> None:
    images = stream(20)
    found = run(his_tpt, images, his_memory=6, his_hard=3)
    for own, literal in zip(found, literal_his(images, 6, 3), strict=True):
        torch.testing.assert_close(own, literal, **EXACT)
    assert (found[-1] - SCALE * images[-1][0] @ encoder(START).T).abs().max() > 1e-3


def test_his_tpt_fuses_three_memories() -> None:
    texts = normalize(torch.tensor([[1, 0.2, 0.1], [0.3, 1, 0.1]], dtype=torch.float64), dim=1)
    image = normalize(torch.tensor([[0.7, 0.6, 0.5]], dtype=torch.float64), dim=1)
    state = state_of_texts(texts, None, image[None], logit_scale=10.0, logit_bias=0.0)
    memories = [texts, normalize(texts + 0.1, dim=1), normalize(texts - 0.1, dim=1)]
    assert fused(state, image, memories)[0].tolist() == pytest.approx([0.567846, 0.432154], abs=6e-7)


def test_what_has_no_context_is_refused() -> None:
    with pytest.raises(OtptError, match="templates-7"):
        get_method("templates-7+dyna-prompt")
    with pytest.raises(OtptError, match="maple"):
        get_method("maple+his-tpt")
