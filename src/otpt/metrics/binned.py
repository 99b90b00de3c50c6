"""Calibration errors: over bins (ECE, MCE, adaptive ECE, debiased ECE, SCE, class-wise adaptive ECE) and without (KS
error, smooth ECE).

All are floats in [0, 1] (debiased ECE: [−1, 1]); published tables print them times 100.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import elementwise

from otpt.arguments import checked
from otpt.metrics.inputs import (
    BoolArray,
    Confidences,
    DenseRows,
    FloatArray,
    IntArray,
    StoredRows,
    Values,
    check_bins,
    sums_by,
)
from otpt.metrics.table import METRICS, metric, rows_of

_STEPS = 4096  # grid steps of the smooth ECE
_ROWS = 128  # resamples per chunk, 4 MiB of spectra


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Confidence bins: edges (M + 1,); counts, accuracy and mean confidence (M,), nan for empty bins.

    ``total`` is the number of images, including those in no bin.
    """

    edges: FloatArray
    counts: IntArray
    accuracy: FloatArray
    confidence: FloatArray
    total: int

    @property
    def gaps(self) -> FloatArray:
        """Gaps conf_m − acc_m (M,), positive for over-confidence; nan for empty bins."""
        return self.confidence - self.accuracy


@checked
def reliability_bins(confidence: Values, correct: Values, *, n_bins: int = 20, side: str = "right") -> ReliabilityBins:
    """Compute equal-width bins from (confidence, correct) or (probabilities, labels).

    >>> r = reliability_bins([0.3, 0.9, 0.8], [0, 1, 0], n_bins=2)
    >>> r.counts, r.accuracy
    (array([1, 2]), array([0. , 0.5]))
    """
    rows = rows_of(confidence, correct)
    index = bin_index(rows.confidences, n_bins, side)
    inside = index >= 0
    index = index[inside]
    counts = np.bincount(index, minlength=n_bins)

    def means(values: FloatArray | BoolArray) -> FloatArray:
        sums = np.bincount(index, weights=values[inside], minlength=n_bins)
        return np.divide(sums, counts, out=np.full(n_bins, np.nan), where=counts > 0)

    accuracy, confidence = means(rows.correct), means(rows.confidences)
    return ReliabilityBins(bin_edges(n_bins), counts.astype(np.int64), accuracy, confidence, len(rows.correct))


def bin_edges(n_bins: int) -> FloatArray:
    """Return the edges m/M (M + 1,), rounded to float32.

    Confidences are float32 numbers: the float32 confidence 0.05 is larger than the float64 edge 0.05 and would fall
    into the next bin.
    """
    return np.linspace(0.0, 1.0, n_bins + 1).astype(np.float32).astype(np.float64)


def bin_index(values: FloatArray, n_bins: int, side: str) -> IntArray:
    """Return the bin index of each value in [0, 1], or −1 for values in no bin.

    ``side="right"``: (lo, hi], the field's convention, where 0 is in no bin. ``side="left"``: [lo, hi), whose
    last bin holds 1 as well.
    """
    check_bins(n_bins, side)
    edges = bin_edges(n_bins)
    if side == "right":
        return np.asarray(np.searchsorted(edges, values, side="left") - 1, dtype=np.int64)
    return np.asarray(np.minimum(np.searchsorted(edges, values, side="right") - 1, n_bins - 1), dtype=np.int64)


@metric("ece", "ECE")
def expected_calibration_error(
    rows: Confidences, weights: FloatArray, *, n_bins: int = 20, side: str = "right"
) -> FloatArray:
    """ECE = Σ_m (n_m/N)·|acc_m − conf_m| over ``n_bins`` equal-width bins of the confidence.

    ``side="right"``, the convention of TPT, C-TPT and O-TPT, makes bins (lo, hi] with float32 edges; a
    confidence of exactly 0 is in none. ``side="left"`` makes them [lo, hi), with 1 in the last.

    >>> round(expected_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 12)
    0.45
    >>> round(expected_calibration_error([0.9, 0.8], [True, False]), 12)
    0.45
    """
    index = bin_index(rows.confidences, n_bins, side)
    surplus = np.where(index >= 0, rows.confidences - rows.correct, 0.0)
    _, sums = sums_by(index, weights * surplus)  # (R, filled bins)
    return np.asarray(np.abs(sums).sum(axis=1) / len(surplus))


@metric("debiased_ece", "debiased ECE", short="Debiased ECE", range=(-1.0, 1.0))
def debiased_ece(rows: Confidences, weights: FloatArray, *, n_bins: int = 20, side: str = "right") -> FloatArray:
    """ECE − E[ECE of a calibrated model with these confidences]; 0 on average for a calibrated model.

    A calibrated model is correct with probability conf_n, for each image independently. In bin m the number of correct
    predictions is then K_m = Σ_n B_n of independent B_n ~ Bernoulli(conf_n), a Poisson-binomial number with mean
    μ_m = Σ_n conf_n, and E[ECE] = (1/N) Σ_m E|K_m − μ_m|. The distribution of K_m is computed exactly, as the product
    of the N_m polynomials 1 − conf_n + conf_n·x. Rounding leaves an error below 1e-12 in the ECE.

    It may be negative, down to −1: a calibrated model is below its own mean half the time, and clipping at 0 would
    bring back a bias. The ECE of a model with large gaps has less bias than is subtracted.

    >>> round(debiased_ece([0.8, 0.8, 0.8, 0.8, 0.8], [1, 1, 1, 1, 0]), 4)
    -0.1311
    """
    # The copies of an image in a resample are correct or wrong together, so there the variance of K_m is
    # Σ_n w_n² conf_n (1 − conf_n). The mean |K_m − μ_m| of the images themselves is scaled by the standard deviation:
    # exact if all images of the bin are drawn equally often, and nearly so for many images.
    index = bin_index(rows.confidences, n_bins, side)
    confidence = np.where(index >= 0, rows.confidences, 0.0)  # values outside the bins have no gap
    variances = confidence * (1.0 - confidence)
    bins, drawn = sums_by(index, np.square(weights) * variances)
    spread = np.sqrt(sums_by(index, variances[None])[1][0])
    gaps = np.array([mean_absolute_deviation(confidence[index == m]) for m in bins])
    scale = np.divide(gaps, spread, out=np.zeros_like(gaps), where=spread > 0)
    ece = METRICS["ece"].compute(rows, weights, n_bins=n_bins, side=side)
    return np.asarray(ece - (np.sqrt(drawn) * scale).sum(axis=1) / len(confidence))


def mean_absolute_deviation(p: FloatArray) -> float:
    """Compute E|K − Σp| of K = Σ_n B_n with independent B_n ~ Bernoulli(p_n).

    >>> round(mean_absolute_deviation(np.array([0.9])), 12)
    0.18
    """
    factors = np.stack([1.0 - p, p], axis=1)  # polynomials 1 − p_n + p_n·x, multiplied in pairs by Fourier transforms
    while len(factors) > 1:
        if len(factors) % 2:
            factors = np.concatenate([factors, np.eye(1, factors.shape[1])])
        length = 2 * factors.shape[1] - 1
        size = 1 << (length - 1).bit_length()
        spectra = np.fft.rfft(factors, size, axis=1)
        product = np.fft.irfft(spectra[0::2] * spectra[1::2], size, axis=1)[:, :length]
        factors = np.maximum(product, 0.0)
    distribution = factors[0]
    return float((np.abs(np.arange(len(distribution)) - p.sum()) * distribution).sum())


@metric("adaptive_ece", "adaptive ECE", short="Adaptive ECE")
def adaptive_calibration_error(rows: Confidences, weights: FloatArray, *, n_bins: int = 20) -> FloatArray:
    """Adaptive ECE: the formula of the ECE over bins of equal mass.

    With the confidences sorted, c_(1) ≤ … ≤ c_(N), and M bins, bin m is (h_{m−1}, h_m] where h_m = c_(⌈mN/M⌉)
    and h_0 = −∞. Every image is in exactly one bin; without ties the bins differ by at most one image;
    ties are never split, so the value does not depend on the order of the images.

    >>> round(adaptive_calibration_error([0.6, 0.7, 0.8, 0.9], [1, 1, 0, 1], n_bins=2), 12)
    0.35
    """
    check_bins(n_bins)
    n = len(rows.confidences)
    _, counts = sums_by(rows.confidences, weights)  # (R, distinct confidences)
    _, surplus = sums_by(rows.confidences, weights * (rows.confidences - rows.correct))
    targets = (np.arange(1, n_bins + 1) * n + n_bins - 1) // n_bins  # ⌈mN/M⌉
    ranks, sums = np.cumsum(counts, axis=1), np.cumsum(surplus, axis=1)
    ends = np.stack([np.searchsorted(row, targets, side="left") for row in ranks])  # (R, M)
    of_bins = np.diff(np.take_along_axis(sums, ends, axis=1), axis=1, prepend=0.0)
    return np.asarray(np.abs(of_bins).sum(axis=1) / n)


@metric("mce", "MCE")
def maximum_calibration_error(
    rows: Confidences, weights: FloatArray, *, n_bins: int = 20, side: str = "right"
) -> FloatArray:
    """MCE = max_m |acc_m − conf_m| over the bins of the ECE that contain an image.

    >>> round(maximum_calibration_error([0.9, 0.8], [True, False]), 12)
    0.8
    """
    index = bin_index(rows.confidences, n_bins, side)
    surplus = np.where(index >= 0, rows.confidences - rows.correct, 0.0)
    _, sums = sums_by(index, weights * surplus)
    _, counts = sums_by(index, weights)
    # a bin none of whose images was drawn has sum 0, which does not change the maximum
    return np.asarray(np.max(np.abs(sums) / np.maximum(counts, 1.0), axis=1))


@metric("sce", "SCE", "classwise_ece", needs="rows")
def classwise_calibration_error(
    rows: StoredRows | DenseRows, weights: FloatArray, *, n_bins: int = 20, side: str = "right"
) -> FloatArray:
    """SCE = (1/C) Σ_c Σ_m (n_mc/N)·|freq_mc − conf_mc|, the static or class-wise calibration error.

    For each class c all N probabilities p_nc are binned, not only those of predicted images; freq_mc is the
    fraction of label c in bin m and conf_mc the mean p_nc there. C counts the columns, whether or not a class
    occurs as a label.
    """
    check_bins(n_bins, side)
    # With S_cm = Σ_{n: p_nc in bin m} w_n (p_nc − [y_n = c]), SCE = Σ_cm |S_cm| / NC. Nearly all N·C probabilities lie
    # in the lowest bin of their class, whose S_c0 is the sum over all bins minus those above.
    image, column, p, totals = _dense(rows, weights, n_bins) if isinstance(rows, DenseRows) else _stored(rows, weights)
    p = np.minimum(p, 1.0)
    index = bin_index(p, n_bins, side)
    of_label = bin_index(np.minimum(rows.probabilities, 1.0), n_bins, side)
    totals -= _by_class(rows.labels, weights * (of_label >= 0), totals.shape[1])
    cell, label_cell = column * n_bins + index, rows.labels * n_bins + of_label
    above, label_above = index > 0, np.flatnonzero(of_label > 0)
    image = np.concatenate([image[above], label_above])
    cell = np.concatenate([cell[above], label_cell[label_above]])
    surplus = np.concatenate([p[above], np.full(len(label_above), -1.0)])
    cells, sums = sums_by(cell, weights[:, image] * surplus)
    lowest = totals - _by_class(cells // n_bins, sums, totals.shape[1])
    return np.asarray((np.abs(lowest).sum(axis=1) + np.abs(sums).sum(axis=1)) / (weights.shape[1] * totals.shape[1]))


def _by_class(classes: IntArray, values: FloatArray, n: int) -> FloatArray:
    """Sum the columns of ``values`` (R, K) by their class (K,) into (R, n)."""
    of_classes = np.zeros((len(values), n))
    columns, sums = sums_by(classes, values)
    of_classes[:, columns] = sums
    return of_classes


def _dense(rows: DenseRows, weights: FloatArray, n_bins: int) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return (image, class, probability) above the lowest bin, and the totals (R, C)."""
    totals = np.zeros((len(weights), rows.p.shape[1]))
    chunks = []
    for part, p in rows.chunks():
        np.minimum(p, 1.0, out=p)
        totals += weights[:, part] @ p
        image, column = np.nonzero(p >= bin_edges(n_bins)[1])
        chunks.append((image + part.start, column, p[image, column]))
    image, column, large = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    return image, column, large, totals


def _stored(rows: StoredRows, weights: FloatArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return the values of :func:`_dense` from stored rows.

    Probabilities that are not stored lie in the lowest bin; only their sums by image and by class are known. An image's
    sum is distributed over the classes in proportion to the class sums, so the metric is exact for weights of one and
    approximate for resamples.
    """
    n, classes = len(rows.labels), len(rows.class_sums)
    image = np.repeat(np.arange(n), rows.top_counts)
    p = np.minimum(rows.top_probabilities, 1.0)
    rest_of_class = rows.class_sums - np.bincount(rows.top_classes, weights=p, minlength=classes)
    rest_of_image = np.maximum(1.0 - np.bincount(image, weights=p, minlength=n), 0.0)
    whole = rest_of_image.sum()
    fraction = rest_of_image / whole if whole > 0 else np.full(n, 1.0 / n)
    rest = (weights * fraction).sum(axis=1, keepdims=True) * rest_of_class
    return image, rows.top_classes, p, rest + _by_class(rows.top_classes, weights[:, image] * p, classes)


@metric("classwise_adaptive_ece", "class-wise adaptive ECE", short="ACE", needs="probabilities")
def classwise_adaptive_calibration_error(rows: DenseRows, weights: FloatArray, *, n_bins: int = 20) -> FloatArray:
    """ACE = (1/RC) Σ_c Σ_m |freq_mc − conf_mc| over R bins of equal mass for each class; bins are not weighted.

    The N probabilities of a class are sorted; bin m holds those of the ranks from ⌈(m−1)N/R⌉ + 1 to ⌈mN/R⌉, with the
    mean probability conf_mc and the fraction freq_mc of label c. Equal probabilities share their mean label, so
    the value does not depend on the order of the images. Bins without a rank (N < R) are left out of the mean.
    Nixon et al. call it ACE, CoTS AECE. It needs all probabilities.

    >>> classwise_adaptive_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 0], n_bins=1)
    0.25
    """
    check_bins(n_bins)
    n, classes = rows.p.shape
    ranks = np.unique((np.arange(n_bins + 1) * n + n_bins - 1) // n_bins)  # 0, then ⌈mN/R⌉
    sizes = np.diff(ranks)
    total = np.zeros(len(weights))
    for c in range(classes):
        column = np.minimum(rows.p[:, c].astype(np.float64), 1.0)
        ends = np.cumsum(sums_by(column, weights)[1], axis=1)
        sums = np.cumsum(sums_by(column, weights * (column - (rows.labels == c)))[1], axis=1)
        for row in range(len(weights)):
            reached = np.interp(ranks, np.append(0.0, ends[row]), np.append(0.0, sums[row]))
            total[row] += np.abs(np.diff(reached) / sizes).sum()
    return total / (len(sizes) * classes)


@metric("ks_error", "KS error", short="KS")
def ks_calibration_error(rows: Confidences, weights: FloatArray) -> FloatArray:
    """KS = max_n |(1/N) Σ_{i ≤ n} (conf_i − correct_i)|, images by rising confidence, ties together; in [0, 1].

    >>> round(ks_calibration_error([0.9, 0.8, 0.6], [1, 0, 0]), 12)
    0.466666666667
    """
    _, surplus = sums_by(rows.confidences, weights * (rows.confidences - rows.correct))
    return np.asarray(np.max(np.abs(np.cumsum(surplus, axis=1)), axis=1) / len(rows.confidences))


@metric("smooth_ece", "smooth ECE", short="Smooth ECE")
def smooth_ece(rows: Confidences, weights: FloatArray) -> FloatArray:
    """Smooth ECE (Błasiok and Nakkiran, 2023): a kernel instead of bins.

        r_σ(t) = (1/N) Σ_n (correct_n − conf_n)·K_σ(conf_n, t)
        smECE_σ = ∫₀¹ |r_σ(t)| dt,   smECE = the σ at which smECE_σ = σ

    K_σ is the Gaussian kernel reflected at 0 and 1. smECE_σ falls with σ, so there is exactly one such σ. The cosines
    are eigenfunctions of K_σ, K_σ(x, t) = 1 + 2 Σ_{k≥1} exp(−(πkσ)²/2)·cos(πkx)·cos(πkt), so on a grid the smoothing
    is a fast Fourier transform. An image is divided between its two neighbours on a grid of 4096 steps h, with a
    relative error of about (h/σ)²/10: below 1e-3 for a smooth ECE of 0.3 %, 1e-5 for 2 %.

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
    """Compute the cosine coefficients (R, J + 1) of surpluses (R, N) interpolated on the grid."""
    cells, whole = sums_by(cell, surplus)
    _, above = sums_by(cell, upper)
    masses = np.zeros((len(surplus), _STEPS + 1))
    masses[:, cells] = whole - above
    masses[:, cells + 1] += above
    return np.asarray(np.fft.rfft(masses, 2 * _STEPS, axis=1).real)


def _smoothed(coefficients: FloatArray, widths: FloatArray) -> FloatArray:
    """Compute smECE_σ (R,) from the coefficients Σ_j m_j cos(πkj/J), (R, J + 1), for widths σ (R,)."""
    k = np.arange(_STEPS + 1)
    decay = np.exp(-0.5 * np.square(np.pi * widths[:, None] * k))
    # r_σ on the grid is 2J·irfft; the integral is the mean over the J steps, with half of either end
    gap = np.abs(np.fft.irfft(coefficients * decay, 2 * _STEPS, axis=1)[:, : _STEPS + 1])
    return np.asarray(2.0 * gap.sum(axis=1) - gap[:, 0] - gap[:, -1])


def _fixed_point(coefficients: FloatArray) -> FloatArray:
    """Solve smECE_σ = σ for σ in [0, 1], for each row."""
    rows = np.arange(len(coefficients))

    def excess(widths: FloatArray, row: IntArray) -> FloatArray:
        return _smoothed(coefficients[row.astype(np.int64)], widths) - widths

    ends = np.zeros(len(rows)), np.ones(len(rows))
    roots = elementwise.find_root(excess, ends, args=(rows,), tolerances={"xatol": 1e-13, "fatol": 1e-13}).x
    return np.asarray(np.where(np.isnan(roots), 1.0, roots))  # rounding above 1 leaves no change of sign
