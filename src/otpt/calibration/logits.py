"""Rescaling of logits: temperature, SaLS, and the precision of the softmax.

softmax(ℓ/T): T > 1 lowers the confidence, T < 1 raises it. SaLS gives the adapted logits the range of the zero-shot
logits of the same image. The argmax stays.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from torch import Tensor

from otpt.errors import OtptError
from otpt.objectives import rescale
from otpt.registry import calibrator

Array: TypeAlias = Tensor | npt.NDArray[Any]

FIXED: Mapping[str, float] = MappingProxyType({"vit": 1.16, "resnet": 1.15})
"""The constants C-TPT published for TPT with CLIP, by kind of image tower: ViT-B/16 and RN50."""

_CHUNK_ENTRIES = 1 << 22  # 32 MiB of float64 logits at a time


def to_tensor(values: Array, name: str) -> Tensor:
    """Convert a numpy array to a tensor, copied only where torch could not share it."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise OtptError(f"expected {name} as a torch tensor or an array of numbers, but got another type.") from error


def check_logits(logits: Array, name: str = "logits") -> Tensor:
    """Validate finite floating-point logits (..., C)."""
    tensor = to_tensor(logits, name)
    if tensor.ndim < 1 or tensor.shape[-1] < 1:
        raise OtptError(f"expected {name} of shape (..., C) with at least one class, but got {tuple(tensor.shape)}.")
    if not tensor.is_floating_point():
        raise OtptError(f"expected {name} as floating-point numbers, but got {tensor.dtype}.")
    if not bool(torch.isfinite(tensor).all()):
        raise OtptError(f"expected finite {name}, but got nan or infinity.")
    return tensor


def probabilities(logits: Array, *, temperature: float = 1.0, official: bool = False) -> Tensor:
    """softmax(ℓ/T) over the last dimension of logits (..., C).

    Plain: float32 and float64 keep their dtype; float16 and bfloat16 logits are computed and returned in
    float32.

    ``official=True`` repeats the numbers of the official runs, whose logits are float16 products and whose
    last softmax is outside autocast: ℓ is rounded to float16, ℓ/T is rounded to float16, and the softmax,
    computed in float32, is rounded to float16. Returned as float32. A confidence moves by up to about one
    percent of itself.
    """
    z = check_logits(logits)
    if not official:
        z = z.float() if z.dtype.itemsize < 4 else z
        return torch.softmax(apply_temperature(z, temperature), dim=-1)
    half = z.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    # torch's own float16 kernels: a detour over float32 differs from them by one step in one of 10,000 values
    return torch.softmax(apply_temperature(half, temperature), dim=-1).float()


def fixed_temperature(family: str) -> float:
    """The published temperature of a backbone's family.

    >>> fixed_temperature("vit")
    1.16
    """
    if family not in FIXED:
        raise OtptError(
            f"No temperature was published for backbone family {family!r} (only for {', '.join(FIXED)}); give one with "
            "--set temperature=1.2, in Python method.override({'temperature': 1.2}), or fit one on labelled images "
            "that are not in the test set: Classifier.calibrate, otpt.calibration.fit_temperature."
        )
    return FIXED[family]


def apply_temperature(logits: Array, temperature: float) -> Tensor:
    """ℓ/T of logits (..., C), in their dtype; differentiable in ℓ."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise OtptError(f"expected a finite temperature > 0, but got {temperature!r}.")
    return check_logits(logits) / float(temperature)


def fit_temperature(
    logits: Array, labels: Array, *, bounds: tuple[float, float] = (1e-3, 1e3), prior: float = 0.0
) -> float:
    """The temperature that minimises the NLL of held-out labelled logits (N, C), labels (N,).

    With b = 1/T the objective f(b) = mean_n [logsumexp_c(b·ℓ_nc) − b·ℓ_n,y_n] is convex, with

        f'(b) = mean_n (E_p[ℓ_n] − ℓ_n,y_n),    p = softmax(b·ℓ_n):

    its minimum is the one root of f', found in float64 by Brent's method.

    ``prior`` is the weight λ, in labels, of a Gamma prior on b with its mode at T = 1: it adds λ·(b − log b)/N to f,
    which stays convex. Few labels then move T little, and T has a minimum of f even where every label is the argmax.

    Where there is no minimum within ``bounds`` the nearer bound is returned, with a warning: the lower one if
    a sharper distribution is always better (every label is the argmax), the upper one if a flatter one is
    (logits that say nothing about the labels, or the contrary). Where T does not matter (one class, or rows
    of equal logits) it is 1.
    """
    z = check_logits(logits).detach()
    low, high = bounds
    if not 0 < low < high < math.inf:
        raise OtptError(f"expected bounds 0 < low < high, both finite, but got {bounds!r}.")
    y = to_tensor(labels, "labels")
    _check_labels(z, y)
    if not 0 <= prior < math.inf:
        raise OtptError(f"expected prior >= 0, a number of labels, but got {prior!r}.")
    if bool((z == z[:, :1]).all()):
        return 1.0
    # f' grows with b: not yet positive at the largest b, or no longer negative at the smallest, it has no root
    if _slope(-math.log(low), z, y, prior) <= 0:
        return _at_bound(low, "lower")
    if _slope(-math.log(high), z, y, prior) >= 0:
        return _at_bound(high, "upper")
    return math.exp(-brentq(_slope, -math.log(high), -math.log(low), args=(z, y, prior), xtol=1e-13))


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


def _check_labels(z: Tensor, y: Tensor) -> None:
    if z.ndim != 2 or len(z) == 0:
        raise OtptError(f"expected logits of shape (N, C) with N >= 1 to fit on, but got shape {tuple(z.shape)}.")
    if y.shape != z.shape[:1]:
        raise OtptError(f"expected labels of shape ({len(z)},), one per image, but got shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise OtptError(f"expected labels as integers, but got {y.dtype}.")
    lowest, highest = int(y.min()), int(y.max())
    if lowest < 0 or highest >= z.shape[1]:
        wrong = lowest if lowest < 0 else highest
        raise OtptError(f"expected labels from 0 to {z.shape[1] - 1}, but got {wrong}.")


def _at_bound(bound: float, which: str) -> float:
    """Return the bound with a warning, because T is then a choice and no longer a fit."""
    why = "every sharper" if which == "lower" else "every flatter"
    warnings.warn(
        f"fit_temperature reached its {which} bound {bound:g}: {why} distribution fits these labels better; "
        "use more held-out images or set the bounds.",
        UserWarning,
        stacklevel=3,
    )
    return bound


def zero_shot_range(logits: Array) -> tuple[Tensor, Tensor]:
    """Smallest and largest logit of each image: (..., C) → two tensors (...)."""
    z = check_logits(logits)
    return z.amin(dim=-1), z.amax(dim=-1)


def rescale_to_range(logits: Array, low: Tensor | float, high: Tensor | float) -> Tensor:
    """ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(high − low) + low of logits (..., C), in their dtype; differentiable.

    ``low`` and ``high`` are numbers or tensors (...), one per image. Constant logits (0/0 in the formula) all
    become ``low``: their softmax is uniform before and after, at any level.
    """
    z = check_logits(logits)
    low, high = (_per_image(bound, z, name) for bound, name in ((low, "low"), (high, "high")))
    if not bool((low <= high).all()):  # also true of nan
        raise OtptError("expected a range with low <= high, but got low above high or nan.")
    return rescale(z, low, high)


# Robust-adapt's code has C-TPT's weight at 50 for all data sets.
@calibrator(source="Murugesan et al., ECCV 2024 (Robust-adapt)", weights={"dispersion": 50.0})
def sals(logits: Array, zero_shot: Array) -> Tensor:
    """SaLS: logits rescaled to the image's zero-shot range.

    Adapted logits (..., C) in the range of zero-shot logits (..., C):

        ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(max z − min z) + min z

    The map is increasing, so the argmax and the accuracy are those of ℓ. The dtype is that of ``logits``;
    gradients flow into both.

    >>> import torch
    >>> sals(torch.tensor([1.0, 3.0, 2.5]), torch.tensor([10.0, 12.0, 11.0]))
    tensor([10.0000, 12.0000, 11.5000])
    """
    adapted, reference = check_logits(logits), check_logits(zero_shot, "zero_shot")
    if adapted.shape != reference.shape:
        raise OtptError(
            f"expected zero_shot of shape {tuple(adapted.shape)}, that of the logits, but got {tuple(reference.shape)}."
        )
    return rescale_to_range(adapted, *zero_shot_range(reference))


def _per_image(bound: Tensor | float, logits: Tensor, name: str) -> Tensor:
    """Broadcast the bound to (..., 1), next to logits (..., C)."""
    if not isinstance(bound, Tensor):
        return logits.new_tensor(bound).expand(*logits.shape[:-1], 1)
    if bound.shape not in (logits.shape[:-1], ()):
        raise OtptError(
            f"expected {name} as a number or of shape {tuple(logits.shape[:-1])}, one per image, "
            f"but got shape {tuple(bound.shape)}."
        )
    return bound.to(logits).expand(logits.shape[:-1]).unsqueeze(-1)
