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
from scipy.optimize import elementwise

from otpt.metrics.inputs import FloatArray, IntArray, Rows, sums_by
from otpt.metrics.table import metric

_STEPS = 4096
_ROWS = 128  # resamples at a time, whose spectra take 4 MiB


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
    """σ in [0, 1] with smECE_σ = σ, for each row."""
    rows = np.arange(len(coefficients))

    def excess(widths: FloatArray, row: IntArray) -> FloatArray:
        return _smoothed(coefficients[row.astype(np.int64)], widths) - widths

    ends = np.zeros(len(rows)), np.ones(len(rows))
    found = elementwise.find_root(excess, ends, args=(rows,), tolerances={"xatol": 1e-13, "fatol": 1e-13}).x
    return np.asarray(np.where(np.isnan(found), 1.0, found))  # rounding above 1 leaves no change of sign
