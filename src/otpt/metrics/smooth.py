"""Calibration errors without bins: KS, and smooth ECE with a kernel in place of bins (Błasiok and Nakkiran, 2023).

    r_σ(t) = (1/N) Σ_n (correct_n − conf_n)·K_σ(conf_n, t)
    smECE_σ = ∫₀¹ |r_σ(t)| dt,   smECE = the σ at which smECE_σ = σ

K_σ is the Gaussian kernel reflected at 0 and 1. smECE_σ falls with σ, so there is exactly one such σ; no width has to
be chosen. The reflected kernel has the cosines as eigenfunctions,

    K_σ(x, t) = 1 + 2 Σ_{k≥1} exp(−(πkσ)²/2)·cos(πkx)·cos(πkt),

so on a grid the smoothing is a fast Fourier transform. An image is divided between its two neighbours on a grid of
4096 steps h, which makes a relative error of about (h/σ)²/10: below 1e-3 for a smooth ECE of 0.3 %, 1e-5 for 2 %.
"""

from __future__ import annotations

import numpy as np

from otpt.metrics.inputs import FloatArray, IntArray, Rows, sums_by
from otpt.metrics.table import metric

_STEPS = 4096
_ROWS = 128  # resamples at a time, whose spectra take 4 MiB
_ITERATIONS = 60
_TOLERANCE = 1e-13


@metric("ks_error", "KS error", short="KS")
def ks_calibration_error(rows: Rows, weights: FloatArray) -> FloatArray:
    """KS = max_n |(1/N) Σ_{i ≤ n} (conf_i − correct_i)|, images by rising confidence, ties together; in [0, 1].

    >>> round(ks_calibration_error([0.9, 0.8, 0.6], [1, 0, 0]), 12)
    0.466666666667
    """
    _, surplus = sums_by(rows.confidences, weights * (rows.confidences - rows.correct))
    return np.asarray(np.max(np.abs(np.cumsum(surplus, axis=1)), axis=1) / len(rows.confidences))


@metric("smooth_ece", "smooth ECE", short="Smooth ECE")
def smooth_ece(rows: Rows, weights: FloatArray) -> FloatArray:
    """smECE, in [0, 1]: the width σ at which the gap smoothed with that width is σ on average.

    >>> round(smooth_ece([0.5, 0.5, 0.5, 0.5], [1, 1, 1, 1]), 6)
    0.5
    """
    place = rows.confidences * _STEPS
    cell = np.minimum(place.astype(np.int64), _STEPS - 1)
    surplus = (rows.correct - rows.confidences) / len(place)
    upper = surplus * (place - cell)
    parts = [weights[at : at + _ROWS] for at in range(0, len(weights), _ROWS)]
    return np.concatenate([_fixed_point(_spectrum(cell, part * surplus, part * upper)) for part in parts])


def _spectrum(cell: IntArray, surplus: FloatArray, upper: FloatArray) -> FloatArray:
    """Cosine coefficients (R, J + 1) of the surpluses (R, N), divided between a cell of the grid and the next."""
    cells, whole = sums_by(cell, surplus)
    _, above = sums_by(cell, upper)
    masses = np.zeros((len(surplus), _STEPS + 1))
    masses[:, cells] = whole - above
    masses[:, cells + 1] += above
    return np.asarray(np.fft.rfft(masses, 2 * _STEPS, axis=1).real)


def _smoothed(coefficients: FloatArray, widths: FloatArray) -> FloatArray:
    """smECE_σ (R,) of the coefficients Σ_j m_j cos(πkj/J), (R, J + 1), each at its own width (R,)."""
    k = np.arange(_STEPS + 1)
    decay = np.exp(-0.5 * np.square(np.pi * widths[:, None] * k))
    # r_σ on the grid is 2J·irfft; the integral is the mean over the J steps, with half of either end
    gap = np.abs(np.fft.irfft(coefficients * decay, 2 * _STEPS, axis=1)[:, : _STEPS + 1])
    return np.asarray(2.0 * gap.sum(axis=1) - gap[:, 0] - gap[:, -1])


def _fixed_point(coefficients: FloatArray) -> FloatArray:
    """σ with smECE_σ = σ, for each row: false position with halved ends (the Illinois rule)."""
    low, high = np.zeros(len(coefficients)), np.ones(len(coefficients))
    at_low, at_high = _smoothed(coefficients, low) - low, _smoothed(coefficients, high) - high
    found = np.where(at_low <= 0.0, 0.0, 1.0)
    open_ = np.flatnonzero((at_low > 0.0) & (at_high < 0.0))
    last = np.zeros(len(coefficients))
    for _ in range(_ITERATIONS):
        if not len(open_):
            break
        a, b, fa, fb = low[open_], high[open_], at_low[open_], at_high[open_]
        middle = (a * fb - b * fa) / (fb - fa)
        value = _smoothed(coefficients[open_], middle) - middle
        side = np.where(value > 0.0, 1.0, -1.0)
        same = side == last[open_]
        up, down = open_[side > 0], open_[side < 0]
        # an end that stays twice counts half, so that the other side closes in too
        at_high[up] = np.where(same, 0.5, 1.0)[side > 0] * at_high[up]
        at_low[down] = np.where(same, 0.5, 1.0)[side < 0] * at_low[down]
        low[up], at_low[up] = middle[side > 0], value[side > 0]
        high[down], at_high[down] = middle[side < 0], value[side < 0]
        last[open_], found[open_] = side, middle
        open_ = open_[np.abs(value) > _TOLERANCE]
    return found
