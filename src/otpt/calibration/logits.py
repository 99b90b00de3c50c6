"""Rescaling of logits (temperature, SaLS, DAC) and the precision of the softmax. The argmax stays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from torch import Tensor

from otpt.errors import OtptError
from otpt.objectives import rescale
from otpt.registry import Count, calibrator

Array: TypeAlias = Tensor | npt.NDArray[Any]

FIXED = {"vit": 1.16, "resnet": 1.15}
"""C-TPT's published constants for TPT with CLIP, by kind of image tower: ViT-B/16 and RN50."""

BASE_CLASS = 0.05
"""Distance of tuned text features below which a class counts as a base class."""

_CHUNK_ENTRIES = 1 << 22  # 32 MiB of float64 logits at a time


def to_tensor(values: Array) -> Tensor:
    """Convert a numpy array to a tensor, copied only where torch could not share it."""
    return values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))


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


def probabilities(logits: Array, *, temperature: float = 1.0, official: bool = False) -> Tensor:
    """softmax(ℓ/T) over the last dimension of logits (..., C); float16 and bfloat16 are computed in float32.

    ``official=True`` repeats the numbers of the official runs, whose logits are float16 products and whose last softmax
    is outside autocast: ℓ, ℓ/T and the softmax are rounded to float16. Returned as float32. A confidence moves by up to
    about one percent of itself.
    """
    z = check_logits(logits)
    if not official:
        z = z.float() if z.dtype.itemsize < 4 else z
        return torch.softmax(z / _positive(temperature), dim=-1)
    half = z.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    # torch's own float16 kernels: a detour over float32 differs from them by one step in one of 10,000 values
    return torch.softmax(half / _positive(temperature), dim=-1).float()


def fixed_temperature(family: str) -> float:
    """Return the published temperature of a backbone's family.

    >>> fixed_temperature("vit")
    1.16
    """
    if family not in FIXED:
        raise OtptError(
            f"No temperature was published for backbone family {family!r} (only for {', '.join(FIXED)}); give one with "
            "--set temperature=1.2, or fit one on labelled images that are not in the test set ('otpt calibrate')."
        )
    return FIXED[family]


def apply_temperature(logits: Array, temperature: float) -> Tensor:
    """ℓ/T of logits (..., C), in their dtype; differentiable in ℓ."""
    return check_logits(logits) / _positive(temperature)


def _positive(temperature: float) -> float:
    if not (math.isfinite(temperature) and temperature > 0):
        raise OtptError(f"expected a finite temperature > 0, but got {temperature!r}.")
    return float(temperature)


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
    """f'(b), by chunks of rows: 50,000 × 1000 logits would take 400 MB in float64."""
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
    """Text features under words and under a learned prompt: of C classes (C, D), of its B base classes (B, D)."""

    zero_shot: Tensor
    tuned: Tensor
    base_zero_shot: Tensor
    base_tuned: Tensor


def dac_factors(
    zero_shot: Tensor, tuned: Tensor, base_zero_shot: Tensor, base_tuned: Tensor, neighbours: int = 5
) -> Tensor:
    """γ_c = exp(d⁰_c − d¹_c) of learned prompts: (C, D), (C, D), (B, D), (B, D) → (C,).

    d⁰_c and d¹_c are the mean distances of text feature c to its ``neighbours`` nearest text features of the B base
    classes that the prompts were learned on, zero-shot and tuned; of fewer base classes all are taken. γ_c = 1 for a
    base class itself, whose nearest tuned neighbour is closer than 0.05. Logits are multiplied by the γ_c of their
    predicted class.
    """
    before, after = _distances(zero_shot, base_zero_shot), _distances(tuned, base_tuned)
    factors = _factors(before, after, neighbours)
    return torch.where(after.amin(dim=1) < BASE_CLASS, torch.ones_like(factors), factors)


def own_dac_factors(zero_shot: Tensor, tuned: Tensor, classes: Tensor | None = None, neighbours: int = 5) -> Tensor:
    """γ_c without base classes: all other classes replace them. (C, D) × 2 → (C,).

    ``classes`` (m,) selects some classes. Of fewer than ``neighbours`` other classes all are taken; with none, γ is 1.
    """
    chosen = torch.arange(len(tuned), device=tuned.device) if classes is None else classes
    if len(tuned) == 1:
        return tuned.new_ones(len(chosen))
    others = [_distances(texts[chosen], texts).scatter(1, chosen[:, None], torch.inf) for texts in (zero_shot, tuned)]
    return _factors(others[0], others[1], min(neighbours, len(tuned) - 1))


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
    """Each row multiplied by the factor of its predicted class; ``factors``: classes (m,) → (m,)."""
    predicted, views = logits.argmax(dim=1).unique(return_inverse=True)
    own = factors(predicted)[views]
    return own[:, None].to(logits) * logits, {"temperature": 1.0 / float(own[0])}


def _distances(texts: Tensor, others: Tensor) -> Tensor:
    """Euclidean: (m, D) and (n, D) → (m, n); by differences, since products lose the digits of small ones."""
    return torch.cdist(texts, others, compute_mode="donot_use_mm_for_euclid_dist")


def _factors(before: Tensor, after: Tensor, neighbours: int) -> Tensor:
    if neighbours < 1:
        raise OtptError(f"The number of neighbours is {neighbours}; expected 1 or more.")
    count = min(neighbours, before.shape[1])
    nearest = [each.topk(count, dim=1, largest=False).values.mean(dim=1) for each in (before, after)]
    return (nearest[0] - nearest[1]).exp()
