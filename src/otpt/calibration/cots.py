"""CoTS: the temperature at which an image's strong views are as sure as they were before adapting; and CoR."""

from __future__ import annotations

from torch import Tensor

from otpt.calibration._inputs import Array, check_logits
from otpt.calibration.matching import matching_temperature
from otpt.entropy import strong_views
from otpt.errors import OtptError
from otpt.registry import Fraction


def cots_temperature(logits: Array, zero_shot: Array, strong_ratio: float = 0.1) -> Tensor:
    """τ* of each image, of the adapted and the zero-shot logits of its views: two of (…, V, C) → (…), float64.

        τ* = arg min_τ (1/n) Σ_{i∈Ω} (max softmax(ℓ_i/τ) − max softmax(z_i))²

    Ω are the n = int((V − 1)·ratio) augmented views of smallest entropy under the adapted logits ℓ; the clean view
    comes first and is never among them. Where nothing was adapted τ* is 1 exactly; see :func:`matching_temperature`.
    """
    adapted, reference = check_logits(logits), check_logits(zero_shot, "zero_shot")
    if adapted.shape != reference.shape or adapted.ndim < 2 or adapted.shape[-2] < 2:
        raise OtptError(
            f"expected logits and zero_shot of one shape (..., V, C) with two views or more, but got "
            f"{tuple(adapted.shape)} and {tuple(reference.shape)}."
        )
    chosen = strong_views(adapted, strong_ratio)[..., None].expand(*adapted.shape[:-2], -1, adapted.shape[-1])
    return matching_temperature(adapted.gather(-2, chosen), reference.gather(-2, chosen))


def cots(logits: Tensor, zero_shot: Tensor, strong_ratio: Fraction = 0.1) -> tuple[Tensor, dict[str, float]]:
    """CoTS: logits divided by the temperature at which the strong views are as confident as they were zero-shot.

    ℓ/τ* of all views of an image, (V, C) each, and τ*.
    """
    temperature = float(cots_temperature(logits, zero_shot, strong_ratio))
    return logits / temperature, {"temperature": temperature}


def cor(logits: Array, zero_shot: Array) -> Tensor:
    """CoR: the adapted label with the zero-shot confidence, a diagnosis.

    Logits ℓ/τ: two of (…, C) → (…, C). τ gives each row of ℓ exactly the confidence of its zero-shot logits. It
    shows how much of an adaptation's miscalibration is in its confidences; only the largest probability is meant, the
    others follow from τ.
    """
    adapted, reference = check_logits(logits), check_logits(zero_shot, "zero_shot")
    temperature = matching_temperature(adapted.unsqueeze(-2), reference.unsqueeze(-2))
    return adapted / temperature.unsqueeze(-1).to(adapted)
