"""The temperature that gives adapted logits the confidences of zero-shot logits, exactly.

With b = 1/τ and the gaps d_c = max z − z_c of a view's adapted logits z, its confidence is p(b) = 1/(1 + S(b)),
S(b) = Σ_c exp(−b·d_c) over all classes but the predicted one. log S is convex and falls strictly, so each view alone
has one b at which p is its zero-shot confidence. Below the smallest and above the largest of these the mean squared
difference of several views is monotone in b, and between them it is smooth: a scan of its slope finds the minima, and
bisection pins them down. Working with log S, the log-odds against the predicted class, keeps all digits where
confidences are 1 to the last bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from otpt.calibration._inputs import Array, check_logits
from otpt.errors import OtptError

LIMITS = (1e-6, 1e6)
"""Of the temperature, for confidences that no finite one gives: 1/C, or more than tied logits allow."""

_POINTS = 257  # of the scan; minima lie further apart than the confidence takes to rise, about a factor e in b
_CHUNK_ENTRIES = 1 << 22  # 32 MiB of float64 at a time


def matching_temperature(logits: Array, zero_shot: Array) -> Tensor:
    """τ* = arg min_τ (1/k) Σ_i (max softmax(ℓ_i/τ) − max softmax(z_i))²: two of (…, k, C) → (…), float64.

    ℓ are the adapted logits of an image's k views, z the zero-shot ones. The minimum is the global one, within
    :data:`LIMITS`; of equal ones the largest temperature is taken. Equal logits give 1 exactly, and so do logits that
    no temperature changes (one class, or all classes equal).

    >>> import torch
    >>> zero_shot = torch.tensor([[0.6, 0.2, 0.2]]).log()
    >>> print(f"{matching_temperature(torch.tensor([[3.0, 1.0, 0.0]]), zero_shot):.4f}")
    2.2249
    """
    adapted, reference = check_logits(logits), check_logits(zero_shot, "zero_shot")
    if adapted.shape != reference.shape or adapted.ndim < 2:
        raise OtptError(
            f"expected logits and zero_shot of one shape (..., k, C), but got {tuple(adapted.shape)} and "
            f"{tuple(reference.shape)}."
        )
    images = zip(_images(adapted), _images(reference), strict=True)
    # one image at a time: none depends on its neighbours, not even in the last bit
    found = [_temperature(own, other) for own, other in images]
    return torch.tensor(found, dtype=torch.float64).reshape(adapted.shape[:-2])


def _images(logits: Tensor) -> Tensor:
    """(…, k, C) → (N, k, C)."""
    return logits.detach().cpu().double()[None].flatten(0, -3)


def _temperature(logits: Tensor, zero_shot: Tensor) -> float:
    """τ* of one image, of (k, C) each."""
    if logits.shape[1] == 1:
        return 1.0
    gaps = _gaps(logits)
    target = _log_odds(_gaps(zero_shot), gaps.new_ones(len(gaps)))[0]
    own = _own_roots(gaps, target)
    low, high = float(own.min()), float(own.max())
    if low == high:
        return 1.0 / low
    return math.exp(-_global_minimum(gaps, target, math.log(low), math.log(high)))


def _gaps(logits: Tensor) -> Tensor:
    """From the largest logit to each of the others, ascending: (k, C) → (k, C − 1)."""
    ordered = logits.sort(dim=1, descending=True).values
    return ordered[:, :1] - ordered[:, 1:]


def _own_roots(gaps: Tensor, target: Tensor) -> Tensor:
    """For each view alone the b at which log S is ``target``, by Newton steps within a shrinking bracket: (k,)."""
    lowest, highest = (torch.full_like(target, 1 / limit) for limit in reversed(LIMITS))
    constant = gaps.amax(dim=1) == 0
    too_sure, too_flat = (_log_odds(gaps, each)[0] - target for each in (highest, lowest))
    low = torch.where(too_sure >= 0, highest, lowest)  # even the lowest temperature is not sure enough
    high = torch.where(too_flat <= 0, lowest, highest)
    low, high = (torch.where(constant, torch.ones_like(b), b) for b in (low, high))
    b = torch.ones_like(target).clamp(low, high)
    for _ in range(200):  # bisection in log b alone would take about 60
        log_odds, mean_gap = _log_odds(gaps, b)
        excess = log_odds - target
        low, high = torch.where(excess > 0, b, low), torch.where(excess < 0, b, high)
        settled = (excess.abs() <= 1e-14 * (1 + target.abs())) | (high - low <= 1e-15 * b)  # as far as rounding allows
        if bool(settled.all()):
            break
        newton = b + excess / mean_gap
        step = torch.where((low < newton) & (newton < high), newton, (low * high).sqrt())
        b = torch.where(settled, b, step)
    return b


def _log_odds(gaps: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log S(b) and −d log S/db, the mean gap under softmax(−b·d): (k, C − 1) and (…, k) → two of (…, k)."""
    least = gaps[:, :1]
    weights = torch.exp(b[..., None] * (least - gaps))
    total = weights.sum(dim=-1)
    return total.log() - b * least[:, 0], (weights * gaps).sum(dim=-1) / total


def _global_minimum(gaps: Tensor, target: Tensor, low: float, high: float) -> float:
    """The log b between two bounds at which the mean squared difference is smallest."""
    grid = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    _, slope = _loss_and_slope(grid, gaps, target)
    turns = (slope[:-1] < 0) & (slope[1:] >= 0)
    left, right = grid[:-1][turns], grid[1:][turns]
    for _ in range(60):
        middle = (left + right) / 2
        if bool(((middle == left) | (middle == right)).all()):
            break
        falls = _loss_and_slope(middle, gaps, target)[1] < 0
        left, right = torch.where(falls, middle, left), torch.where(falls, right, middle)
    candidates = torch.cat([grid[:1][slope[:1] >= 0], right, grid[-1:][slope[-1:] <= 0]])
    loss, _ = _loss_and_slope(candidates, gaps, target)
    return float(candidates[loss.argmin()])


def _loss_and_slope(log_b: Tensor, gaps: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The mean squared difference at each of (m,), and half its derivative by log b: (m,) each."""
    rows = max(1, _CHUNK_ENTRIES // gaps.numel())
    found = [_chunk(part.exp(), gaps, target) for part in log_b.split(rows)]
    return torch.cat([loss for loss, _ in found]), torch.cat([slope for _, slope in found])


def _chunk(b: Tensor, gaps: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    each = b[:, None].expand(-1, len(gaps))
    log_odds, mean_gap = _log_odds(gaps, each)
    rest = torch.sigmoid(log_odds)  # 1 − p, whose digits remain where p is 1
    difference = torch.sigmoid(target) - rest
    rise = rest * torch.sigmoid(-log_odds) * each * mean_gap
    return difference.square().mean(dim=1), (difference * rise).mean(dim=1)
