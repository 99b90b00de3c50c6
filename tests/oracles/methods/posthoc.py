"""Calibrations, mixtures and gates after tuning, the literal way: one view and one class at a time, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.optimize import brentq
from torch import Tensor

Rows = Sequence[Sequence[float]]


def softmax(row: Sequence[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp((each - max(row)) / temperature) for each in row]
    return [each / sum(powers) for each in powers]


def entropy(row: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in softmax(row) if p > 0)


def label(row: Sequence[float]) -> int:
    return max(range(len(row)), key=lambda c: row[c])


def by_entropy(rows: Rows, views: Sequence[int]) -> list[int]:
    return sorted(views, key=lambda i: entropy(rows[i]))


def strong(rows: Rows) -> list[int]:
    """Ω: 10 % of the augmented views."""
    return by_entropy(rows, range(1, len(rows)))[: int((len(rows) - 1) * 0.1)]


def confident(rows: Rows) -> list[int]:
    """10 % of all views."""
    return by_entropy(rows, range(len(rows)))[: int(len(rows) * 0.1)]


def loss(adapted: Rows, targets: Sequence[float], temperature: float) -> float:
    gaps = [max(softmax(row, temperature)) - target for row, target in zip(adapted, targets, strict=True)]
    return sum(gap**2 for gap in gaps) / len(gaps)


def slope(adapted: Rows, targets: Sequence[float], temperature: float) -> float:
    """dL/dτ times τ²/2·k: with p = max softmax(z/τ), dp/dτ = p·(Σ_c p_c z_c − max z)/τ²."""
    total = 0.0
    for row, target in zip(adapted, targets, strict=True):
        p = softmax(row, temperature)
        below = sum(q * (z - max(row)) for q, z in zip(p, row, strict=True))
        total += (max(p) - target) * max(p) * below
    return total


def matching(adapted: Rows, zero_shot: Rows, low: float = 0.02, high: float = 500.0, points: int = 4001) -> float:
    """τ* by brute force: a dense scan of all temperatures that matter, then the root of the slope beside the best."""
    targets = [max(softmax(row)) for row in zero_shot]
    grid = [low * (high / low) ** (i / (points - 1)) for i in range(points)]
    losses = [loss(adapted, targets, temperature) for temperature in grid]
    best = min(range(1, points - 1), key=lambda i: losses[i])
    return float(brentq(lambda t: slope(adapted, targets, t), grid[best - 1], grid[best + 1], xtol=1e-14, rtol=1e-14))


def cots(adapted: Rows, zero_shot: Rows) -> float:
    chosen = strong(adapted)
    return matching([adapted[i] for i in chosen], [zero_shot[i] for i in chosen])


def mixture(rows: Rows, chosen: Sequence[int], alpha: float, temperature: float = 1.0) -> list[float]:
    clean = softmax(rows[0], temperature)
    others = [softmax(rows[i], temperature) for i in chosen]
    return [alpha * clean[c] + (1 - alpha) * sum(p[c] for p in others) / len(others) for c in range(len(clean))]


def mean_cosine(texts: Tensor) -> float:
    rows = texts.tolist()
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    return sum(sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) for i, j in pairs) / len(pairs)


def se_weight(zero_shot: Rows, *, quadratic: bool = False) -> float:
    above = [entropy(row) > entropy(zero_shot[0]) for row in zero_shot[1:]]
    r = sum(above) / len(above)
    if quadratic:
        return 0.5 + 0.4 * math.copysign((r - 0.5) ** 2, r - 0.5)
    return 0.5 + 0.4 * (r - 0.5)


def literal_use_loss(selected: Tensor, at_start: Tensor, chosen: Sequence[int]) -> Tensor:
    """−Σ p̃ log q; ``selected`` are the clean view and then Ω, with gradient."""
    rows = at_start.tolist()
    q = mixture(rows, chosen, se_weight(rows))
    p = selected.softmax(1).mean(0)
    return -(p * torch.tensor(q, dtype=p.dtype).log()).sum()


def cas(zero_shot: Rows) -> tuple[float, int]:
    """The score, and how many of the confident views agree."""
    clean = softmax(zero_shot[0])
    chosen = confident(zero_shot)
    cosines, same = [], []
    for i in chosen:
        p = softmax(zero_shot[i])
        product = sum(a * b for a, b in zip(p, clean, strict=True))
        cosines.append(product / math.hypot(*p) / math.hypot(*clean))
        same.append(label(zero_shot[i]) == label(zero_shot[0]))
    return sum(c for c, agrees in zip(cosines, same, strict=True) if agrees) / sum(cosines), sum(same)


def dac_factor(zero_shot: Rows, tuned: Rows, c: int, base: Sequence[int], neighbours: int) -> float:
    """γ_c with the texts of ``base`` as base classes, without the rule for base classes themselves."""
    means = []
    for texts in (zero_shot, tuned):
        nearest = sorted(math.dist(texts[c], texts[b]) for b in base)[:neighbours]
        means.append(sum(nearest) / len(nearest))
    return math.exp(-means[1]) / math.exp(-means[0])
