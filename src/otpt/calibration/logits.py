"""Rescaling of logits (temperature, SaLS, DAC, CoTS, CoR) and the precision of the softmax. The argmax does not
change.

CoTS and CoR find temperatures that give adapted logits the confidences of zero-shot logits, exactly. With b = 1/τ and
the gaps d_c = max z − z_c of a view's adapted logits z, its confidence is p(b) = 1/(1 + S(b)), S(b) = Σ_c exp(−b·d_c)
over all classes but the predicted one. log S is convex and falls strictly, so each view alone has one b at which p is
its zero-shot confidence. Below the smallest and above the largest of these the mean squared difference of several views
is monotone in b, and between them it is smooth: a scan of its slope finds the minima, and Brent's method refines them.
Working with log S, the log-odds against the predicted class, keeps all digits where confidences are 1 to the last bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from otpt.arguments import checked
from otpt.arrays import as_array
from otpt.arrays import to_tensor as dense_tensor
from otpt.errors import OtptError
from otpt.metrics.inputs import FloatArray
from otpt.objectives import rescale, strong_views
from otpt.registry import Count, Fraction, calibrator

Array: TypeAlias = Tensor | npt.NDArray[np.generic]

FIXED = {"vit": 1.16, "resnet": 1.15}
"""C-TPT's published constants for TPT with CLIP, by kind of image tower: ViT-B/16 and RN50."""

BASE_CLASS = 0.05
"""Distance of tuned text features below which a class counts as a base class."""

LIMITS = (1e-6, 1e6)
"""Bounds of the temperature, for confidences that no finite temperature reaches."""

_POINTS = 257  # of the scan; minima lie further apart than the confidence takes to rise, about a factor e in b
_CHUNK_ENTRIES = 1 << 22  # 32 MiB of float64 at a time


def to_tensor(values: Array) -> Tensor:
    """Convert an array or a list to a tensor, without a copy where possible."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and values.flags.c_contiguous:
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return dense_tensor(values, "values", "numbers")


def check_logits(logits: Array, name: str = "logits") -> Tensor:
    """Validate finite floating-point logits (..., C)."""
    tensor = to_tensor(logits)
    if tensor.ndim < 1 or tensor.shape[-1] < 1 or not tensor.is_floating_point() or not tensor.isfinite().all():
        raise OtptError(
            f"expected finite {name} as floating-point numbers (..., C), but got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}, or nan or infinity."
        )
    return tensor


def check_pair(logits: Array, zero_shot: Array, shape: str = "(..., C)", least: int = 1) -> tuple[Tensor, Tensor]:
    """Validate adapted and zero-shot logits of one shape with at least ``least`` dimensions."""
    adapted, reference = check_logits(logits), check_logits(zero_shot, "zero_shot")
    if adapted.shape != reference.shape or adapted.ndim < least:
        raise OtptError(
            f"expected logits and zero_shot of one shape {shape}, but got {tuple(adapted.shape)} and "
            f"{tuple(reference.shape)}."
        )
    return adapted, reference


@checked
def probabilities(logits: Array, *, temperature: float = 1.0, official: bool = False) -> Tensor:
    """Compute softmax(ℓ/T) over the last dimension of logits (..., C), in float32 or float64.

    ``official=True`` reproduces the official scripts: ℓ, ℓ/T and the softmax are rounded to float16 and returned as
    float32. The relative change of a confidence is up to about one percent.
    """
    z = check_logits(logits)
    if not official:
        z = z.float() if z.dtype.itemsize < 4 else z
        return torch.softmax(z / _positive(temperature), dim=-1)
    half = z.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, the range of float16, but got a larger one.")
    # torch's float16 kernels; computing in float32 differs by one unit in one of 10,000 values
    return torch.softmax(half / _positive(temperature), dim=-1).float()


@checked
def fixed_temperature(family: str) -> float:
    """Return the temperature published for OpenAI's CLIP with an image tower of this kind (Yoon et al., 2024).

    >>> fixed_temperature("vit")
    1.16
    """
    if family not in FIXED:
        raise OtptError(
            f"No temperature was published for the checkpoint {family!r} (only for OpenAI's CLIP: {', '.join(FIXED)}); "
            "set one with --set temperature=1.2, or fit one on labelled images that are not in the test set ('otpt "
            "calibrate DATA --maps temperature')."
        )
    return FIXED[family]


@checked
def apply_temperature(logits: Array, temperature: float) -> Tensor:
    """Divide logits (..., C) by T in their dtype; differentiable in ℓ."""
    return check_logits(logits) / _positive(temperature)


def _positive(temperature: float) -> float:
    if not (math.isfinite(temperature) and temperature > 0):
        raise OtptError(f"expected a finite temperature > 0, but got {temperature!r}.")
    return float(temperature)


@checked
def fit_temperature(
    logits: Array, labels: Array, *, bounds: tuple[float, float] = (1e-3, 1e3), prior: float = 0.0
) -> float:
    """Fit the temperature that minimises the NLL of held-out logits (N, C) and labels (N,).

    With b = 1/T the objective f(b) = mean_n [logsumexp_c(b·ℓ_nc) − b·ℓ_n,y_n] is convex, with

        f'(b) = mean_n (E_p[ℓ_n] − ℓ_n,y_n),    p = softmax(b·ℓ_n):

    its minimum is the one root of f', found in float64 by Brent's method. ``prior`` is the weight λ, in labels, of a
    Gamma prior on b with its mode at T = 1: it adds λ·(b − log b)/N to f, so that few labels move T little.

    Without a minimum within ``bounds`` the nearer bound is returned, with a warning; where T does not matter (one
    class, or rows of equal logits) it is 1.
    """
    z, y = check_logits(logits).detach(), to_tensor(labels)
    integers = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    if z.ndim != 2 or len(z) == 0 or y.shape != z.shape[:1] or not integers:
        raise OtptError(
            f"expected logits (N, C) and integer labels (N,) with N >= 1, but got {tuple(z.shape)} and {y.dtype} of "
            f"shape {tuple(y.shape)}."
        )
    if y.min() < 0 or y.max() >= z.shape[1]:
        raise OtptError(f"expected labels from 0 to {z.shape[1] - 1}, but got {int(y.min())} to {int(y.max())}.")
    if len(bounds) != 2 or not all(isinstance(bound, (int, float)) for bound in bounds):
        raise OtptError(f"bounds are {bounds!r:.80}; expected two temperatures, such as (0.01, 100.0).")
    low, high = bounds
    if not 0 < low < high < math.inf or not 0 <= prior < math.inf:
        raise OtptError(f"expected finite bounds 0 < low < high and prior >= 0, but got {bounds!r} and {prior!r}.")
    if bool((z == z[:, :1]).all()):
        return 1.0
    ends = -math.log(high), -math.log(low)  # of log b, with which f' grows
    for end, bound, side in ((ends[1], low, -1), (ends[0], high, 1)):
        if side * _slope(end, z, y, prior) >= 0:
            warnings.warn(
                f"fit_temperature reached its bound {bound:g}: every {'sharper' if side < 0 else 'flatter'} "
                "distribution fits these labels better; use more held-out images or set the bounds.",
                UserWarning,
                stacklevel=2,
            )
            return bound
    return math.exp(-brentq(_slope, *ends, args=(z, y, prior), xtol=1e-13))


def _slope(log_b: float, z: Tensor, y: Tensor, prior: float) -> float:
    """Compute f'(b) in chunks of rows to limit memory."""
    b = math.exp(log_b)
    slope = prior * (1.0 - 1.0 / b)
    rows = max(1, _CHUNK_ENTRIES // z.shape[1])
    for start in range(0, len(z), rows):
        part = z[start : start + rows].cpu().double()
        # with the largest logit at 0 rounding cannot make the slope of separable data positive
        part = part - part.amax(dim=1, keepdim=True)
        of_label = part.gather(1, y[start : start + rows, None].cpu().long())[:, 0]
        slope += float(((torch.softmax(b * part, dim=1) * part).sum(dim=1) - of_label).sum())
    return slope / len(z)


# Robust-adapt's code has C-TPT's weight at 50 for all data sets.
@calibrator(source="Murugesan et al., ECCV 2024 (Robust-adapt)", weights={"dispersion": 50.0})
def sals(logits: Array, zero_shot: Array) -> Tensor:
    """SaLS: logits rescaled to the image's zero-shot range.

    Adapted logits (..., C) in the range of zero-shot logits (..., C):

        ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(max z − min z) + min z

    Constant logits all become min z. The dtype is that of ``logits``; gradients flow into both.

    >>> import torch
    >>> sals(torch.tensor([1.0, 3.0, 2.5]), torch.tensor([10.0, 12.0, 11.0]))
    tensor([10.0000, 12.0000, 11.5000])
    """
    adapted, reference = check_pair(logits, zero_shot)
    low, high = (bound.unsqueeze(-1).to(adapted) for bound in (reference.amin(dim=-1), reference.amax(dim=-1)))
    return rescale(adapted, low, high)


class BaseTexts(NamedTuple):
    """Text features of C classes (C, D) and B base classes (B, D), under words and under a learned prompt."""

    zero_shot: Tensor
    tuned: Tensor
    base_zero_shot: Tensor
    base_tuned: Tensor


@checked
def dac_factors(
    zero_shot: Array, tuned: Array, base_zero_shot: Array, base_tuned: Array, neighbours: int = 5
) -> Tensor:
    """Compute γ_c = exp(d⁰_c − d¹_c) of learned prompts: (C, D), (C, D), (B, D), (B, D) → (C,).

    d⁰_c and d¹_c are the mean distances of text feature c to its ``neighbours`` nearest text features of the B base
    classes that the prompts were learned on, zero-shot and tuned; with fewer base classes all are used. γ_c = 1 for a
    base class, whose nearest tuned neighbour is closer than 0.05. Logits are multiplied by the γ_c of their
    predicted class.
    """
    sizes: dict[str, int] = {}
    texts = as_array(zero_shot, "text features", "CD", sizes)
    bases = as_array(base_zero_shot, "text features of the base classes", "BD", sizes, like=texts)
    tuned_texts = as_array(tuned, "tuned text features", "CD", sizes, like=texts)
    tuned_bases = as_array(base_tuned, "tuned text features of the base classes", "BD", sizes, like=texts)
    before, after = _distances(texts, bases), _distances(tuned_texts, tuned_bases)
    factors = _factors(before, after, neighbours)
    return torch.where(after.amin(dim=1) < BASE_CLASS, torch.ones_like(factors), factors)


@checked
def own_dac_factors(zero_shot: Array, tuned: Array, classes: Array | None = None, neighbours: int = 5) -> Tensor:
    """Compute γ_c with all other classes instead of base classes: (C, D), (C, D) → (C,).

    ``classes`` (m,) selects some classes. With fewer than ``neighbours`` other classes all are used; γ is 1 for C = 1.
    """
    sizes: dict[str, int] = {}
    texts = as_array(zero_shot, "text features", "CD", sizes)
    tuned_texts = as_array(tuned, "tuned text features", "CD", sizes, like=texts)
    count = len(texts)
    chosen = torch.arange(count, device=texts.device) if classes is None else _class_indices(classes, count)
    if count == 1:
        return texts.new_ones(len(chosen))
    before, after = (
        _distances(each[chosen], each).scatter(1, chosen[:, None], torch.inf) for each in (texts, tuned_texts)
    )
    return _factors(before, after, min(neighbours, count - 1))


def _class_indices(classes: Array, count: int) -> Tensor:
    """Validate class indices (m,) from 0 to ``count`` − 1."""
    indices = to_tensor(classes)
    whole = not indices.is_floating_point() and not indices.is_complex() and indices.dtype != torch.bool
    if indices.ndim != 1 or not whole or bool(((indices < 0) | (indices >= count)).any()):
        raise OtptError(f"The classes are {classes!r:.80}; expected a list of indices from 0 to {count - 1}.")
    return indices.long()


@calibrator(source="after Wang et al., ICML 2024 (DAC)", views=True)
def dac(
    logits: Tensor, text_features: Tensor, adapted_text_features: Tensor, dac_neighbours: Count = 5
) -> tuple[Tensor, dict[str, float]]:
    """DAC among all classes: logits multiplied by how much nearer the predicted class came to its neighbours.

    γ_ĉ·ℓ of all views of an image (V, C), ĉ each view's predicted class; and the clean view's temperature 1/γ. DAC
    itself is for learned prompts and their base classes; this needs no training.
    """
    return _scaled(logits, lambda each: own_dac_factors(text_features, adapted_text_features, each, dac_neighbours))


@calibrator(source="Wang et al., ICML 2024 (DAC)")
def dac_base(logits: Tensor, base_texts: BaseTexts, dac_neighbours: Count = 5) -> tuple[Tensor, dict[str, float]]:
    """DAC of a learned context: logits of new classes, multiplied by their distances to the learned ones.

    γ_ĉ·ℓ of views (V, C) under a learned prompt, γ by its base classes; and the clean view's temperature 1/γ.
    """

    def factors(classes: Tensor) -> Tensor:
        zero_shot, tuned, base_zero_shot, base_tuned = base_texts
        return dac_factors(zero_shot[classes], tuned[classes], base_zero_shot, base_tuned, dac_neighbours)

    return _scaled(logits, factors)


def _scaled(logits: Tensor, factors: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Multiply each row by the factor of its predicted class; ``factors``: classes (m,) → (m,)."""
    predicted, views = logits.argmax(dim=1).unique(return_inverse=True)
    row_factors = factors(predicted)[views]
    return row_factors[:, None].to(logits) * logits, {"temperature": 1.0 / float(row_factors[0])}


def _distances(texts: Tensor, others: Tensor) -> Tensor:
    """Compute Euclidean distances (m, D), (n, D) → (m, n) by differences, exact for small distances."""
    return torch.cdist(texts, others, compute_mode="donot_use_mm_for_euclid_dist")


def _factors(before: Tensor, after: Tensor, neighbours: int) -> Tensor:
    if neighbours < 1:
        raise OtptError(f"The number of neighbours is {neighbours}; expected 1 or more.")
    count = min(neighbours, before.shape[1])
    nearest = [distances.topk(count, dim=1, largest=False).values.mean(dim=1) for distances in (before, after)]
    return (nearest[0] - nearest[1]).exp()


@checked
def cots_temperature(logits: Array, zero_shot: Array, strong_ratio: float = 0.1) -> Tensor:
    """Compute τ* from adapted and zero-shot logits (…, V, C) of V ≥ 2 views: (…), float64.

        τ* = arg min_τ (1/n) Σ_{i∈Ω} (max softmax(ℓ_i/τ) − max softmax(z_i))²

    Ω are the n = int((V − 1)·ratio) augmented views of lowest entropy under the adapted logits ℓ; the clean view comes
    first and is excluded. For equal logits τ* is exactly 1; see :func:`matching_temperature`.
    """
    adapted, reference = check_pair(logits, zero_shot, "(..., V, C)", 2)
    if not 0 < strong_ratio <= 1:
        raise OtptError(f"strong_ratio is {strong_ratio!r}; expected a fraction above 0, and at most 1.")
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
    """Compute τ* = arg min_τ (1/k) Σ_i (max softmax(ℓ_i/τ) − max softmax(z_i))²: two (…, k, C) → (…), float64.

    ℓ are the adapted logits of an image's k views, z the zero-shot ones. The minimum is global within
    :data:`LIMITS`; among equal minima the largest temperature is returned. Equal logits give exactly 1, as do logits
    that no temperature changes (one class, or all classes equal).

    >>> import torch
    >>> zero_shot = torch.tensor([[0.6, 0.2, 0.2]]).log()
    >>> print(f"{matching_temperature(torch.tensor([[3.0, 1.0, 0.0]]), zero_shot):.4f}")
    2.2249
    """
    pair = check_pair(logits, zero_shot, "(..., k, C)", 2)
    adapted, initial = (tensor.detach().cpu().double()[None].flatten(0, -3).numpy() for tensor in pair)  # (N, k, C)
    # one image at a time, so that results do not depend on the batch
    temperatures = [_temperature(*image) for image in zip(adapted, initial, strict=True)]
    return torch.tensor(temperatures, dtype=torch.float64).reshape(pair[0].shape[:-2])


def _temperature(logits: FloatArray, zero_shot: FloatArray) -> float:
    """Compute τ* of one image from logits (k, C)."""
    if logits.shape[1] == 1:
        return 1.0
    gaps = _gaps(logits)
    target = _log_odds(0.0, _gaps(zero_shot))[0]
    roots = [_root(view_gaps, goal) for view_gaps, goal in zip(gaps, target, strict=True)]
    low, high = min(roots), max(roots)
    return math.exp(-low) if low == high else math.exp(-_global_minimum(gaps, target, low, high))


def _gaps(logits: FloatArray) -> FloatArray:
    """Return the ascending gaps between the largest logit and the others: (k, C) → (k, C − 1)."""
    ordered = -np.sort(-logits, axis=1)
    return ordered[:, :1] - ordered[:, 1:]


def _log_odds(log_b: float | FloatArray, gaps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute log S(b) and the mean gap −d log S/db under softmax(−b·d): (…), (k, C − 1) → two (…, k)."""
    b = np.exp(log_b)[..., None, None]
    weights = np.exp(b * (gaps[:, :1] - gaps))
    total = weights.sum(axis=-1)
    return np.log(total) - b[..., 0] * gaps[:, 0], (weights * gaps).sum(axis=-1) / total


def _root(gaps: FloatArray, target: float) -> float:
    """Solve log S = ``target`` of one view for log b."""

    def excess(log_b: float) -> float:
        return float(_log_odds(log_b, gaps[None])[0][0] - target)

    low, high = -math.log(LIMITS[1]), -math.log(LIMITS[0])
    if gaps[-1] == 0 or abs(excess(0.0)) <= 1e-14 * (1 + abs(target)):  # constant, or solved by b = 1
        return 0.0
    if excess(high) >= 0:  # unreachable even at the lowest temperature
        return high
    return low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))


def _global_minimum(gaps: FloatArray, target: FloatArray, low: float, high: float) -> float:
    """Return the log b between two bounds that minimises the mean squared difference."""
    grid = np.linspace(low, high, _POINTS)
    rows = max(1, _CHUNK_ENTRIES // gaps.size)
    parts = np.split(grid, range(rows, len(grid), rows))
    slope = np.concatenate([_loss_and_slope(part, gaps, target)[1] for part in parts])
    turns = np.flatnonzero((slope[:-1] < 0) & (slope[1:] >= 0))
    inside = [brentq(lambda at: _loss_and_slope(at, gaps, target)[1], grid[i], grid[i + 1], xtol=1e-15) for i in turns]
    candidates = [*grid[:1][slope[:1] >= 0], *inside, *grid[-1:][slope[-1:] <= 0]]
    return float(min(candidates, key=lambda at: _loss_and_slope(at, gaps, target)[0]))


def _loss_and_slope(log_b: float | FloatArray, gaps: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute the mean squared difference (…) and half its derivative (…) with respect to log b (…)."""
    log_odds, mean_gap = _log_odds(log_b, gaps)
    rest = expit(log_odds)  # 1 − p, which preserves the digits where p is 1
    difference = expit(target) - rest
    rise = rest * expit(-log_odds) * np.exp(log_b)[..., None] * mean_gap
    return np.square(difference).mean(axis=-1), (difference * rise).mean(axis=-1)
