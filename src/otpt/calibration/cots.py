"""CoTS and CoR: temperatures that give adapted logits the confidences of zero-shot logits, exactly.

With b = 1/τ and the gaps d_c = max z − z_c of a view's adapted logits z, its confidence is p(b) = 1/(1 + S(b)),
S(b) = Σ_c exp(−b·d_c) over all classes but the predicted one. log S is convex and falls strictly, so each view alone
has one b at which p is its zero-shot confidence. Below the smallest and above the largest of these the mean squared
difference of several views is monotone in b, and between them it is smooth: a scan of its slope finds the minima, and
Brent's method refines them. Working with log S, the log-odds against the predicted class, keeps all digits where
confidences are 1 to the last bit.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from otpt.calibration.logits import Array, check_pair
from otpt.errors import OtptError
from otpt.metrics.inputs import FloatArray
from otpt.objectives import strong_views
from otpt.registry import Fraction, calibrator

LIMITS = (1e-6, 1e6)
"""Bounds of the temperature, for confidences that no finite one gives: 1/C, or more than tied logits allow."""

_POINTS = 257  # of the scan; minima lie further apart than the confidence takes to rise, about a factor e in b
_CHUNK_ENTRIES = 1 << 22  # 32 MiB of float64 at a time


def cots_temperature(logits: Array, zero_shot: Array, strong_ratio: float = 0.1) -> Tensor:
    """τ* of each image, of the adapted and the zero-shot logits of its V ≥ 2 views: two of (…, V, C) → (…), float64.

        τ* = arg min_τ (1/n) Σ_{i∈Ω} (max softmax(ℓ_i/τ) − max softmax(z_i))²

    Ω are the n = int((V − 1)·ratio) augmented views of smallest entropy under the adapted logits ℓ; the clean view
    comes first and is never among them. Where nothing was adapted τ* is 1 exactly; see :func:`matching_temperature`.
    """
    adapted, reference = check_pair(logits, zero_shot, "(..., V, C)", 2)
    if adapted.shape[-2] < 2:
        raise OtptError("expected two views or more, but got one.")
    chosen = strong_views(adapted, strong_ratio)[..., None].expand(*adapted.shape[:-2], -1, adapted.shape[-1])
    return matching_temperature(adapted.gather(-2, chosen), reference.gather(-2, chosen))


@calibrator(source="Liang et al., 2026 (CoTS)", views=True)
def cots(logits: Tensor, zero_shot: Tensor, strong_ratio: Fraction = 0.1) -> tuple[Tensor, dict[str, float]]:
    """CoTS: logits divided by the temperature at which the strong views are as confident as they were zero-shot.

    ℓ/τ* of all views of an image, (V, C) each, and τ*.
    """
    temperature = float(cots_temperature(logits, zero_shot, strong_ratio))
    return logits / temperature, {"temperature": temperature}


@calibrator(source="Liang et al., 2026 (CoTS)")
def cor(logits: Array, zero_shot: Array) -> Tensor:
    """CoR: the adapted label with the zero-shot confidence, a diagnosis.

    Logits ℓ/τ: two of (…, C) → (…, C). τ gives each row of ℓ exactly the confidence of its zero-shot logits. It
    shows how much of an adaptation's miscalibration is in its confidences; only the largest probability is meant, the
    others follow from τ.
    """
    adapted, reference = check_pair(logits, zero_shot)
    temperature = matching_temperature(adapted.unsqueeze(-2), reference.unsqueeze(-2))
    return adapted / temperature.unsqueeze(-1).to(adapted)


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
    pair = check_pair(logits, zero_shot, "(..., k, C)", 2)
    own, other = (each.detach().cpu().double()[None].flatten(0, -3).numpy() for each in pair)  # (N, k, C)
    # one image at a time: none depends on its neighbours, not even in the last bit
    found = [_temperature(*image) for image in zip(own, other, strict=True)]
    return torch.tensor(found, dtype=torch.float64).reshape(pair[0].shape[:-2])


def _temperature(logits: FloatArray, zero_shot: FloatArray) -> float:
    """τ* of one image, of (k, C) each."""
    if logits.shape[1] == 1:
        return 1.0
    gaps = _gaps(logits)
    target = _log_odds(0.0, _gaps(zero_shot))[0]
    roots = [_root(own, goal) for own, goal in zip(gaps, target, strict=True)]
    low, high = min(roots), max(roots)
    return math.exp(-low) if low == high else math.exp(-_global_minimum(gaps, target, low, high))


def _gaps(logits: FloatArray) -> FloatArray:
    """From the largest logit to each of the others, ascending: (k, C) → (k, C − 1)."""
    ordered = -np.sort(-logits, axis=1)
    return ordered[:, :1] - ordered[:, 1:]


def _log_odds(log_b: float | FloatArray, gaps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """log S(b) and −d log S/db, the mean gap under softmax(−b·d): (…) and (k, C − 1) → two of (…, k)."""
    b = np.exp(log_b)[..., None, None]
    weights = np.exp(b * (gaps[:, :1] - gaps))
    total = weights.sum(axis=-1)
    return np.log(total) - b[..., 0] * gaps[:, 0], (weights * gaps).sum(axis=-1) / total


def _root(gaps: FloatArray, target: float) -> float:
    """The log b at which the log S of one view is ``target``."""

    def excess(log_b: float) -> float:
        return float(_log_odds(log_b, gaps[None])[0][0] - target)

    low, high = -math.log(LIMITS[1]), -math.log(LIMITS[0])
    if gaps[-1] == 0 or abs(excess(0.0)) <= 1e-14 * (1 + abs(target)):  # no temperature changes it, or none is needed
        return 0.0
    if excess(high) >= 0:  # even the lowest temperature is not confident enough
        return high
    return low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))


def _global_minimum(gaps: FloatArray, target: FloatArray, low: float, high: float) -> float:
    """The log b between two bounds at which the mean squared difference is smallest."""
    grid = np.linspace(low, high, _POINTS)
    rows = max(1, _CHUNK_ENTRIES // gaps.size)
    parts = np.split(grid, range(rows, len(grid), rows))
    slope = np.concatenate([_loss_and_slope(part, gaps, target)[1] for part in parts])
    turns = np.flatnonzero((slope[:-1] < 0) & (slope[1:] >= 0))
    inside = [brentq(lambda at: _loss_and_slope(at, gaps, target)[1], grid[i], grid[i + 1], xtol=1e-15) for i in turns]
    candidates = [*grid[:1][slope[:1] >= 0], *inside, *grid[-1:][slope[-1:] <= 0]]
    return float(min(candidates, key=lambda at: _loss_and_slope(at, gaps, target)[0]))


def _loss_and_slope(log_b: float | FloatArray, gaps: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The mean squared difference at each of (…), and half its derivative by log b: (…) each."""
    log_odds, mean_gap = _log_odds(log_b, gaps)
    rest = expit(log_odds)  # 1 − p, which preserves the digits where p is 1
    difference = expit(target) - rest
    rise = rest * expit(-log_odds) * np.exp(log_b)[..., None] * mean_gap
    return np.square(difference).mean(axis=-1), (difference * rise).mean(axis=-1)
