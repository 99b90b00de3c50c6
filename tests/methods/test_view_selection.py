"""Tsallis entropy, ADTE, GS-Bias and weights of views: reference values, and literal loops to 1e-10."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.view_selection import adte, adte_released, class_orders, gs_bias, tsallis, view_weights

EXACT = {"rtol": 0, "atol": 1e-10}
TEXTS = normalize(torch.tensor([[1, 0.2, 0.1], [0.3, 1, 0.1], [0.2, 0.3, 1]], dtype=torch.float64), dim=1)
IMAGES = normalize(
    torch.tensor([[9, 4, 2], [4, 9, 3], [7, 6, 5], [8, 3, 4], [2, 8, 5], [9, 5, 1]], dtype=torch.float64), dim=1
)
THREE = 10 * IMAGES @ TEXTS.mT
TWO = THREE[:, :2]


def views(count: int = 16, classes: int = 5, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, classes, generator=draw, dtype=torch.float64)


def test_tsallis() -> None:
    p = THREE.softmax(dim=1)
    expected = torch.tensor([1.469280, 1.499354, 1.863468, 1.600725, 1.588780, 1.487993], dtype=torch.float64)
    torch.testing.assert_close((1 - p.pow(0.1).sum(dim=1)) / (0.1 - 1), expected, rtol=0, atol=6e-7)
    for count, chosen in ((1, [0]), (2, [0, 5]), (4, [0, 5, 1, 4])):
        torch.testing.assert_close(tsallis(p, tsallis_ratio=count / 6 + 1e-9), p[chosen].mean(dim=0), **EXACT)
    torch.testing.assert_close(tsallis(p, tsallis_order=1.0, tsallis_ratio=0.2), p[1], **EXACT)  # Shannon's choice
    torch.testing.assert_close(tsallis(p, 1.0, 0.5), tsallis(p, 1.0 + 1e-9, 0.5), rtol=0, atol=1e-6)


def test_class_orders() -> None:
    bank, present = torch.zeros(3, 2, 3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.bool)
    bank[0, 0], bank[0, 1], bank[1, 0] = THREE[0].softmax(0), THREE[3].softmax(0), THREE[1].softmax(0)
    present[0] = present[1, 0] = True
    found = class_orders(bank, present)
    torch.testing.assert_close(found, torch.tensor([0.692285, 0.9, 0.01], dtype=torch.float64), rtol=0, atol=6e-7)
    scores = (THREE.softmax(dim=1).pow(found) / (1 - found)).sum(dim=1)
    expected = torch.tensor([4.659787, 10.813837, 6.635838, 4.456029, 9.228193, 5.114216], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


def test_adte_literal() -> None:
    """Forty slots and a threshold of 100 stored images are reached after some hundred images of five classes."""
    state: dict[str, Any] = {}
    bank: list[list[tuple[float, Any]]] = [[] for _ in range(5)]
    for i in range(160):
        logits = views(seed=i) + 4 * torch.eye(5, dtype=torch.float64)[i % 5]
        found = adte(logits, state)[0].exp().numpy()
        p = logits.softmax(dim=1).numpy()
        if sum(map(len, bank)) >= 100:
            matrix = np.stack([np.mean([q for _, q in own], axis=0) for own in bank], axis=1)
            pi = np.full(5, 0.2)
            for _ in range(500):
                moved = matrix @ pi / np.linalg.norm(matrix @ pi)
                if np.linalg.norm(moved - pi) < 1e-4:
                    break
                pi = moved
            logs = np.log(pi)
            q = 0.01 + 0.89 * (logs - logs.min()) / (logs.max() - logs.min())
            scores = [sum(x**r / (1 - r) for x, r in zip(row, q, strict=True)) for row in p]
        else:
            scores = [-sum(x * np.log(x) for x in row) for row in p]
        np.testing.assert_allclose(found, p[int(np.argmin(scores))], atol=1e-10)
        mean = logits.mean(dim=0).numpy()
        top = np.sort(mean)[::-1]
        if top[0] - top[1] >= 1:
            own = bank[int(mean.argmax())]
            if len(own) == 20:
                own.remove(min(own, key=lambda each: each[0]))
            own.append((top[0] - top[1], np.exp(mean) / np.exp(mean).sum()))
    assert sum(map(len, bank)) >= 100


def test_adte_released_sees_all_images_first() -> None:
    """The class bias of the whole set serves every image; before the second pass nothing is predicted."""
    images = [views(seed=i) + 4 * torch.eye(5, dtype=torch.float64)[i % 3] for i in range(30)]
    state: dict[str, Any] = {}
    for logits in images:
        assert torch.equal(adte_released(logits, state, True), logits)
    stored: list[list[Any]] = [[] for _ in range(5)]
    for logits in images:
        mean = logits.mean(dim=0)
        first, second = mean.sort(descending=True).values[:2].tolist()
        if first - second >= 1:
            stored[int(mean.argmax())].append(mean.softmax(dim=0))
    matrix = torch.stack([torch.stack(own).mean(0) if own else torch.zeros(5).double() for own in stored], dim=1)
    pi = torch.full((5,), 0.2, dtype=torch.float64)
    while True:
        moved = matrix @ pi / (matrix @ pi).norm()
        if (moved - pi).norm() < 1e-4:
            break
        pi = moved
    q = 0.01 + 0.89 * (pi.log() - pi.log().min()) / (pi.log().max() - pi.log().min())
    for logits in images:
        p = logits.softmax(dim=1)
        best = int((p**q / (1 - q)).sum(dim=1).argmin())
        torch.testing.assert_close(adte_released(logits, state, False)[0].exp(), p[best], **EXACT)


def test_adte_released_without_a_confident_image() -> None:
    state: dict[str, Any] = {}
    flat = torch.zeros(8, 4, dtype=torch.float64)
    adte_released(flat, state, True)
    torch.testing.assert_close(adte_released(flat, state, False)[0].exp(), flat.softmax(dim=1)[0], **EXACT)


def literal_gs_bias(logits: Tensor, rate: float, steps: int, ratio: float) -> Tensor:
    b, h, first = torch.zeros_like(logits[0]), torch.zeros_like(logits[0]), 0.0
    for step in range(steps):
        c = 0.9 * b + 0.1 * h
        p = (logits + c).softmax(dim=1)
        entropies = -(p * p.log()).sum(dim=1)
        kept = p[entropies.argsort()[: max(int(len(p) * ratio), 1)]]
        m = kept.mean(dim=0)
        loss = float(-(m * m.log()).sum())
        inner = (kept * (m.log() + 1)).sum(dim=1, keepdim=True)
        gradient = -(kept * (m.log() + 1 - inner)).mean(dim=0)
        first = loss if step == 0 else first
        if step and abs(loss - first) > 0.25 * first:
            break
        h, b = c, b - rate * (1.0 if step == 0 else 0.9) * gradient
    return logits + 0.9 * b + 0.1 * h


@pytest.mark.parametrize("rate", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("steps", [1, 5])
def test_gs_bias_literal(rate: float, steps: int) -> None:
    logits = views()
    found = gs_bias(logits, bias_rate=rate, bias_steps=steps, bias_ratio=0.3)
    torch.testing.assert_close(found, literal_gs_bias(logits, rate, steps, 0.3), **EXACT)


def test_gs_bias_reference() -> None:
    """The global gradient on views 1 and 3 of four is ±0.000572, with the second step's ±0.000526."""
    found = (gs_bias(TWO[:4], bias_rate=5, bias_steps=1) - TWO[:4])[0] / 5 / 0.9
    assert found.abs().tolist() == pytest.approx([0.000572, 0.000572], abs=6e-7)
    pair = (gs_bias(TWO[:2], bias_rate=1, bias_steps=1, bias_ratio=1.0) - TWO[:2])[0] / 0.9
    assert pair.tolist() == pytest.approx([-0.001237, 0.001237], abs=6e-7)


def test_view_weights() -> None:
    chosen = TWO[[0, 2, 3]]
    mean = view_weights(chosen, clean_weight=1 / 3, rest_weight=2 / 3)
    assert mean.tolist() == pytest.approx([0.908588, 0.091412], abs=6e-7)
    alone = view_weights(chosen[:1], clean_weight=0.25, rest_weight=0.75)
    torch.testing.assert_close(alone, chosen[0].softmax(dim=0), **EXACT)
