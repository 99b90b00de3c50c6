"""SaLS: give the adapted logits the range the zero-shot logits of the same image have."""

from __future__ import annotations

from torch import Tensor

from otpt.calibration._inputs import Array, check_logits
from otpt.errors import OtptError
from otpt.objectives import rescale


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
    """The bound as a tensor (..., 1) beside logits (..., C)."""
    if not isinstance(bound, Tensor):
        return logits.new_tensor(bound).expand(*logits.shape[:-1], 1)
    if bound.shape not in (logits.shape[:-1], ()):
        raise OtptError(
            f"expected {name} as a number or of shape {tuple(logits.shape[:-1])}, one per image, "
            f"but got shape {tuple(bound.shape)}."
        )
    return bound.to(logits).expand(logits.shape[:-1]).unsqueeze(-1)
