"""Debiased ECE: the ECE minus what a perfectly calibrated model with the same confidences has on average.

A calibrated model is right with probability conf_n, for each image by itself. In bin m the number of right predictions
is then K_m = Σ_n B_n of independent B_n ~ Bernoulli(conf_n), a Poisson-binomial number with mean μ_m = Σ_n conf_n, and

    E[ECE] = (1/N) Σ_m E|K_m − μ_m|.

The distribution of K_m is computed exactly, as the product of the N_m polynomials 1 − conf_n + conf_n·x; nothing is
simulated. Rounding leaves an error below 1e-12 in the ECE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import BoolArray, FloatArray, Statistic, check_bins, check_confidence, of_all
from otpt.metrics.calibration.binning import bin_index, groups
from otpt.metrics.calibration.calibration_error import ece_statistic

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def debiased_ece(confidence: Values, correct: Values, *, bins: int = 20, side: str = "right") -> float:
    """ECE − E[ECE of a calibrated model with these confidences]; 0 on average for a calibrated model.

    It may be negative, down to −1: a calibrated model is below its own mean half the time, and cutting at 0 would bring
    back a bias. What is subtracted is the bias of a calibrated model, and the ECE of one with large gaps has less.

    >>> round(debiased_ece([0.8, 0.8, 0.8, 0.8, 0.8], [1, 1, 1, 1, 0]), 4)
    -0.1311
    """
    check_bins(bins, side)
    return of_all(debiased_statistic(*check_confidence(confidence, correct), bins, side), len(confidence))


def debiased_statistic(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    """Debiased ECE as a function of weights, from checked input.

    The copies of an image in a resample are right or wrong together, so there the variance of K_m is
    Σ_n w_n² conf_n (1 − conf_n). The mean |K_m − μ_m| of the images themselves is scaled by the standard deviation:
    exact if all images of the bin are drawn equally often, and nearly so for many images.
    """
    raw = ece_statistic(confidence, correct, bins, side)
    index = bin_index(confidence, bins, side)
    order, starts = groups(index)
    ordered = np.where(index >= 0, confidence, 0.0)[order]  # what is in no bin has no gap
    variances = ordered * (1.0 - ordered)
    spread = np.sqrt(np.add.reduceat(variances, starts))
    gaps = np.array([mean_absolute_deviation(own) for own in np.split(ordered, starts[1:])])
    scale = np.divide(gaps, spread, out=np.zeros_like(gaps), where=spread > 0)

    def value(weights: FloatArray) -> FloatArray:
        deviations = np.sqrt(np.add.reduceat(np.square(weights[:, order]) * variances, starts, axis=1))
        return np.asarray(raw(weights) - (deviations * scale).sum(axis=1) / len(confidence))

    return value


def mean_absolute_deviation(p: FloatArray) -> float:
    """E|K − Σp| of K = Σ_n B_n, independent B_n ~ Bernoulli(p_n).

    >>> round(mean_absolute_deviation(np.array([0.9])), 12)
    0.18
    """
    distribution = _distribution(p)
    return float((np.abs(np.arange(len(distribution)) - p.sum()) * distribution).sum())


def _distribution(p: FloatArray) -> FloatArray:
    """P(K = k), k = 0 …: the product of all 1 − p_n + p_n·x, multiplied in pairs by fast Fourier transforms."""
    factors = np.stack([1.0 - p, p], axis=1)  # (factors, coefficients)
    while len(factors) > 1:
        if len(factors) % 2:
            one = np.eye(1, factors.shape[1])
            factors = np.concatenate([factors, one])
        length = 2 * factors.shape[1] - 1
        size = 1 << (length - 1).bit_length()
        spectra = np.fft.rfft(factors, size, axis=1)
        product = np.fft.irfft(spectra[0::2] * spectra[1::2], size, axis=1)[:, :length]
        factors = np.maximum(product, 0.0)
    return np.asarray(factors[0])
