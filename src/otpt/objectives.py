"""Objectives of context tuning: pure functions of the selected views' logits or of the text features.

*View objectives* take the logits (…, k, C) of the k selected views of each image; *text objectives* take the text
features (…, C, D) alone, and therefore have the same gradient for every image at the shared init. All return (…).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from otpt.errors import OtptError
from otpt.registry import Positive, objective

TTL_OFFSET = 0.4
"""Entropy in nats at which a view has weight 1 in TTL's loss."""
SPREAD = 0.4
"""Factor of the clean view's weight in SE: with power 1 it stays within 0.5 ± 0.2."""
CLIP_SCORE = 2.5
"""CLIPScore is 2.5·max(cos, 0)."""
ANGLE_CLIP = 0.99999
"""Cosines are clipped at ±ANGLE_CLIP, where the slope of arccos is still finite."""

Range = tuple[Tensor, Tensor]


# ---- views selected by their entropy --------------------------------------------------------------------------------


def fraction_of(views: int, fraction: float) -> int:
    """Return max(1, int(V·fraction)), such as 6 of 64 views for 10 %."""
    return max(int(views * fraction), 1)


def view_entropies(logits: Tensor) -> Tensor:
    """Compute the entropy H_v = −Σ_c p_vc log p_vc of each view: (…, V, C) → (…, V)."""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def select_confident(logits: Tensor, count: int) -> Tensor:
    """Return the indices of the ``count`` views of lowest entropy, ascending: (…, V, C) → (…, count).

    The first index is the most confident view. Ties keep the order of the views.
    """
    return view_entropies(logits).argsort(dim=-1, stable=True)[..., :count]


def select_fraction(logits: Tensor, fraction: float) -> Tensor:
    """Return the indices of the int(V·fraction) most confident views, at least one: (…, V, C) → (…, n)."""
    return select_confident(logits, fraction_of(logits.shape[-2], fraction))


def select_strong(logits: Tensor, count: int) -> Tensor:
    """Return the indices of the clean view and the most confident augmented views: (…, V, C) → (…, count)."""
    strong = 1 + select_confident(logits[..., 1:, :], count - 1)
    return torch.cat([torch.zeros_like(strong[..., :1]), strong], dim=-1)


SELECTED_BY = {"confident": select_confident, "strong": select_strong}
"""Rules that select the views of a step: functions of logits (…, V, C) and a number of views."""


def strong_views(logits: Tensor, strong_ratio: float = 0.1) -> Tensor:
    """Return the indices of Ω, the int((V − 1)·ratio) augmented views of lowest entropy: (…, V, C) → (…, n).

    Ω holds at least one view and never the clean view, which comes first. Ties keep the order of the views.
    """
    return select_strong(logits, fraction_of(logits.shape[-2] - 1, strong_ratio) + 1)[..., 1:]


def clean_weight(all_views: Tensor, se_power: float = 1.0) -> Tensor:
    """Compute the clean view's weight in SE, α = ½ + 0.4·sgn(r − ½)·|r − ½|^power: (…, V, C) → (…).

    r is the fraction of augmented views with a higher entropy than the clean view, so a relatively confident clean view
    gets a large weight.
    """
    entropies = view_entropies(all_views)
    centred = (entropies[..., 1:] > entropies[..., :1]).to(entropies.dtype).mean(dim=-1) - 0.5
    return 0.5 + SPREAD * centred.sign() * centred.abs().pow(se_power)


# ---- objectives of the views ----------------------------------------------------------------------------------------


@objective(name="entropy", source="Shu et al., NeurIPS 2022 (TPT)")
def entropy_of_mean(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction of the selected views, L_TPT = −Σ_c p̄_c log p̄_c.

    p̄ is the mean of the k views' softmax. It is the entropy of the mean, not the mean of the entropies: views that are
    confident in different classes give a large value.
    """
    views = logits.shape[-2]
    log_mean = logits.log_softmax(dim=-1).logsumexp(dim=-2) - math.log(views)
    # A class whose probability underflows would give 0 · (−inf); its limit is 0.
    log_mean = log_mean.clamp(min=torch.finfo(logits.dtype).min)
    return -(log_mean.exp() * log_mean).sum(dim=-1)


@objective(name="pointwise-entropy", source="Sheng et al., CVPR 2025 (R-TPT)")
def mean_of_entropies(logits: Tensor) -> Tensor:
    """Mean of the selected views' own entropies, (1/k) Σ_v H_v."""
    return view_entropies(logits).mean(dim=-1)


@objective(name="weighted-entropy", source="Imam et al., WACV 2025 (TTL)")
def weighted_entropies(logits: Tensor) -> Tensor:
    """Mean of the views' entropies, confident views weighted more: (1/k) Σ_v exp(0.4 − H_v)·H_v.

    No gradient flows through the weights exp(0.4 − H_v). TTL takes all views: ``selection_ratio=1``.
    """
    entropies = view_entropies(logits)
    return ((TTL_OFFSET - entropies.detach()).exp() * entropies).mean(dim=-1)


@objective(source="Zhao et al., ICLR 2024 (RLCF)")
def clip_reward(logits: Tensor, cosines: Tensor, sampled_classes: Annotated[int, Field(ge=2)] = 3) -> Tensor:
    """Cross-entropy of each view's likely classes, weighted by their CLIP score above the average.

    The mean over views and their sampled classes of r·CE, CE_c = −log p_c. The sampled classes of a view are those of
    its largest logits. r = 2.5·max(cos, 0) minus its mean over them, with the cosines (…, k, C) of the views and the
    texts at the init: the model is its own reward. No gradient flows through r.
    """
    sampled = logits.detach().argsort(dim=-1, descending=True, stable=True)[..., :sampled_classes]
    score = CLIP_SCORE * cosines.gather(-1, sampled).clamp(min=0)
    reward = score - score.mean(dim=-1, keepdim=True)
    return -(reward * logits.log_softmax(dim=-1).gather(-1, sampled)).mean(dim=(-2, -1))


def logit_range(row: Tensor) -> Range:
    """Return the range (lo, hi) of reference logits: (…, C) → two tensors (…).

    The released code of Robust-adapt takes the most confident selected view under the prompt that is being tuned, so
    that the range itself carries gradient; its paper takes the zero-shot logits of the image, which are constants.
    """
    return row.amin(dim=-1), row.amax(dim=-1)


def rescale(logits: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Rescale to ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(hi − lo) + lo along the last dimension; bounds (…, 1).

    Constant logits (0/0 in the formula) all become ``lo``: their softmax is uniform before and after.
    """
    least = logits.amin(dim=-1, keepdim=True)
    span = logits.amax(dim=-1, keepdim=True) - least
    return (logits - least) / span.masked_fill(span == 0, 1.0) * (hi - lo) + lo


@objective(source="Murugesan et al., ECCV 2024 (Robust-adapt)")
def rescaled_entropy(logits: Tensor, initial_range: Range) -> Tensor:
    """Entropy of the mean prediction of logits rescaled to the reference range of the first step."""
    lo, hi = (bound[..., None, None] for bound in initial_range)
    return entropy_of_mean(rescale(logits, lo, hi))


@objective(weight=10.0, source="Murugesan et al., ECCV 2024 (Robust-adapt)")
def range_penalty(logits: Tensor, current_range: Range) -> Tensor:
    """Distance of the k×C logits from the current reference range, mean relu(ℓ − hi) + mean relu(lo − ℓ)."""
    lo, hi = (bound[..., None, None] for bound in current_range)
    return ((logits - hi).relu() + (lo - logits).relu()).mean(dim=(-2, -1))


@objective(source="Jiang et al., ICML 2026 (USE)")
def ensemble_cross_entropy(logits: Tensor, zero_shot: Tensor, all_views: Tensor, se_power: Positive = 1.0) -> Tensor:
    """Cross-entropy −Σ_c p̃_c log q_c of the mean prediction with SE's mixture; needs ``selection = "strong"``.

    The k views are the clean one, then Ω. p̃ is the mean of their softmax, with gradient; q = α·p_0 + (1 − α)·mean_Ω p_i
    is SE's mixture under the initial prompt, without. ``all_views`` is (…, V, C).
    """
    if zero_shot.shape[-2] < 2:
        raise OtptError(
            "ensemble-cross-entropy compares the clean view with other selected views, but one view is selected; "
            "increase the views or the selection-ratio, or use the method 'use'."
        )
    p = logits.softmax(dim=-1).mean(dim=-2)
    log_p = zero_shot.log_softmax(dim=-1)
    log_strong = log_p[..., 1:, :].logsumexp(dim=-2) - math.log(log_p.shape[-2] - 1)
    alpha = clean_weight(all_views, se_power)[..., None]
    log_q = torch.logaddexp(alpha.log() + log_p[..., 0, :], (1 - alpha).log() + log_strong)
    return -(p * log_q).sum(dim=-1)


# ---- objectives of the texts ----------------------------------------------------------------------------------------
# W = EEᵀ for unit rows e_i of E (…, C, D), w_i its rows. The five readings of O-TPT have its published weights.

_ORTHOGONALITY = {"fine-grained": 18.0, "shift": 2.0}
_TABLE_8 = "Sharifdeen et al., CVPR 2025, Table 8"


@objective(weight=_ORTHOGONALITY, source="Sharifdeen et al., CVPR 2025")
def orthogonality(text_features: Tensor) -> Tensor:
    """O-TPT's Householder loss in closed form, L_O = (1/C) Σ_i | ‖w_i‖ − 1 |, w_i the rows of EEᵀ.

    With ι_i the i-th unit vector, the reflector R_i = I − 2 v_i v_iᵀ, v_i ∝ w_i − ‖w_i‖·ι_i, maps w_i onto ‖w_i‖·ι_i
    exactly, so that ‖R_i w_i − ι_i‖ = | ‖w_i‖ − 1 |, value and gradient, without the C×C×C reflectors.
    ‖w_i‖² = e_iᵀ (EᵀE) e_i, hence min(C²D, CD²) operations.
    """
    classes, width = text_features.shape[-2:]
    if classes <= width:
        norms = torch.linalg.vector_norm(text_features @ text_features.mT, dim=-1)
    else:
        gram = text_features.mT @ text_features
        norms = ((text_features @ gram) * text_features).sum(dim=-1).clamp(min=0).sqrt()
    return (norms - 1).abs().mean(dim=-1)


@objective(name="orthogonality-rows", weight=_ORTHOGONALITY, source=_TABLE_8)
def row_orthogonality(text_features: Tensor) -> Tensor:
    """Mean row norm (1/C) Σ_i ‖(W − I)_i‖₂: the likeliest reading of O-TPT's row "without Householder"."""
    return torch.linalg.vector_norm(_off_identity(text_features), dim=-1).mean(dim=-1)


@objective(name="orthogonality-frobenius", weight=_ORTHOGONALITY, source=_TABLE_8)
def frobenius_orthogonality(text_features: Tensor) -> Tensor:
    """Frobenius norm ‖W − I‖_F."""
    return torch.linalg.vector_norm(_off_identity(text_features), dim=(-2, -1))


@objective(
    name="orthogonality-squared",
    weight=_ORTHOGONALITY,
    source="Sharifdeen et al., CVPR 2025, equation of the objective",
)
def squared_orthogonality(text_features: Tensor) -> Tensor:
    """Squared Frobenius norm ‖W − I‖_F²: O-TPT's objective as printed in the paper."""
    return _off_identity(text_features).square().sum(dim=(-2, -1))


@objective(
    name="orthogonality-spectral",
    weight=_ORTHOGONALITY,
    source="Sharifdeen et al., CVPR 2025, equation of the objective",
)
def spectral_orthogonality(text_features: Tensor) -> Tensor:
    """Squared spectral norm ‖W − I‖₂²: the equation with ‖·‖₂ read as the operator norm.

    W has the eigenvalues λ_i of EᵀE, and C − D zeros if C > D, so that it is max_i (λ_i − 1)², at least 1 if C > D.
    Only the eigenvector of the largest deviation gets a gradient, in practice the direction that all texts share.
    """
    classes, width = text_features.shape[-2:]
    wide = classes <= width
    gram = text_features @ text_features.mT if wide else text_features.mT @ text_features
    deviations = (torch.linalg.eigvalsh(gram) - 1).square().max(dim=-1).values
    return deviations if wide else deviations.clamp(min=1)


def _off_identity(text_features: Tensor) -> Tensor:
    classes = text_features.shape[-2]
    identity = torch.eye(classes, dtype=text_features.dtype, device=text_features.device)
    return text_features @ text_features.mT - identity


@objective(
    name="dispersion",
    weight={"fine-grained": 50.0, "shift": 20.0},
    maximise=True,
    source="Yoon et al., ICLR 2024 (C-TPT)",
)
def text_dispersion(text_features: Tensor) -> Tensor:
    """Average text feature dispersion, ATFD = (1/C) Σ_i ‖e_i − ē‖₂, maximised.

    ē = (1/C) Σ_i e_i, not re-normalised. Where some e_i = ē the sub-gradient 0 is taken.
    """
    centre = text_features.mean(dim=-2, keepdim=True)
    return torch.linalg.vector_norm(text_features - centre, dim=-1).mean(dim=-1)


# A-TPT's paper widens the nearest angle in both families; its released code narrows it on fine-grained sets.
@objective(name="nearest-angle-narrowed", weight=80.0, source="A-TPT, ICLR 2026, arXiv 2510.26441, released code")
@objective(weight={"fine-grained": 80.0, "shift": 10.0}, maximise=True, source="A-TPT, ICLR 2026, arXiv 2510.26441")
def nearest_angle(text_features: Tensor) -> Tensor:
    """Mean angle to the nearest other class, R_A = (1/C) Σ_c arccos( max_{j≠c} e_c·e_j ).

    In radians, cosines clipped at ±0.99999. Only the nearest class of each class gets a gradient; where the cosine is
    clipped, as between two classes of one name, it is 0.
    """
    cosines = text_features @ text_features.mT
    itself = torch.eye(cosines.shape[-1], dtype=torch.bool, device=cosines.device)
    nearest = cosines.masked_fill(itself, -torch.inf).max(dim=-1).values  # amax would split the gradient among ties
    return nearest.clamp(-ANGLE_CLIP, ANGLE_CLIP).arccos().mean(dim=-1)


# δ and the weight on shifts are not public: δ = 0.5 is our choice, and O-TPT's ratio 18 : 2 gives 30 : 3.3.
@objective(
    name="huber",
    weight={"fine-grained": 30.0, "shift": 3.3},
    source="SoC, CVPR 2026, arXiv 2601.08617",
    caution="neither its delta nor its weight on shifts is public; 0.5 and 3.3 are our choice.",
)
def huber_cosine(text_features: Tensor, huber_delta: Positive = 0.5) -> Tensor:
    """Huber loss of the cosines between classes, R_S = (1/(C(C−1))) Σ_{i≠j} ρ(e_i·e_j).

    ρ(s) = s²/2 for s ≤ δ, and δ·(s − δ/2) above, so that the slope is at most δ. If all cosines exceed δ it is
    δ·(mean cosine − δ/2): its direction is that of the mean cosine.
    """
    cosines = text_features @ text_features.mT
    classes = cosines.shape[-1]
    loss = torch.where(cosines <= huber_delta, cosines.square() / 2, huber_delta * (cosines - huber_delta / 2))
    itself = torch.eye(classes, dtype=torch.bool, device=cosines.device)
    return loss.masked_fill(itself, 0).sum(dim=(-2, -1)) / (classes * (classes - 1))


# It is about 1e-3 at D = 512, so that the weight 1000 gives it the size of the entropy.
@objective(
    name="coordinates",
    weight=1000.0,
    source="D-TPT, arXiv 2510.09473; the weight is ours",
    caution="neither its weight nor the direction of its divergence is public; both are our choice.",
)
def coordinate_divergence(text_features: Tensor, reverse_kl: bool = False) -> Tensor:
    """Divergence of each text feature's coordinates from uniform, (1/C) Σ_c KL( softmax_d(e_c) ‖ 1/D ).

    The softmax is over the coordinates. With ``reverse_kl`` it is KL( 1/D ‖ softmax_d(e_c) ). For unit rows both are
    about half the variance of the coordinates, 1e-3 at D = 512.
    """
    log_p = text_features.log_softmax(dim=-1)
    uniform = -math.log(text_features.shape[-1])
    divergence = uniform - log_p.mean(dim=-1) if reverse_kl else (log_p.exp() * (log_p - uniform)).sum(dim=-1)
    return divergence.mean(dim=-1)


# TCPT has this term in training; no weight was published for a step at test time. One step does not see the term.
@objective(
    name="moments",
    weight=100.0,
    source="TCPT, CVPR 2026, arXiv 2602.19024; two steps at test time and the weight are ours",
    needs="entropy",
    steps=2,
)
def moment_distance(text_features: Tensor, initial_text_features: Tensor) -> Tensor:
    """Distance of mean and covariance of the text features from those at the init, over two steps.

    ‖m − m⁰‖² + ‖Σ − Σ⁰‖²_F of the texts and of those at the init, (C, D) or (…, C, D).
    m = (1/C) Σ_c e_c, Σ = (1/C) Σ_c (e_c − m)(e_c − m)ᵀ. Value and gradient are 0 at the init.
    """
    (mean, covariance), (mean_0, covariance_0) = _moments(text_features), _moments(initial_text_features)
    return (mean - mean_0).square().sum(dim=-1) + (covariance - covariance_0).square().sum(dim=(-2, -1))


def _moments(text_features: Tensor) -> tuple[Tensor, Tensor]:
    mean = text_features.mean(dim=-2)
    centred = text_features - mean[..., None, :]
    return mean, centred.mT @ centred / text_features.shape[-2]


# Texts with attributes are grouped by class: (…, C·A, D) with A texts "a photo of a {attribute} {name}." of a class in
# a row. m_c = (1/A) Σ_a e_ca, not normalised again.


@objective(weight={"fine-grained": 10.0, "shift": 45.0}, maximise=True, source="TCA, ECML 2025, arXiv 2506.22819")
def attribute_inter(text_features: Tensor, attributes: int) -> Tensor:
    """Spread of the classes' mean texts, (1/C) Σ_c ‖m_c − m̄‖₂, maximised.

    m̄ = (1/C) Σ_c m_c. With A = 1 it is C-TPT's dispersion.
    """
    return text_dispersion(_by_class(text_features, attributes).mean(dim=-2))


@objective(weight={"fine-grained": 35.0, "shift": 15.0}, source="TCA, ECML 2025, arXiv 2506.22819")
def attribute_intra(text_features: Tensor, attributes: int) -> Tensor:
    """Spread of the texts of each class, (1/C) Σ_c (1/A) Σ_a ‖e_ca − m_c‖₂; 0 with A = 1."""
    return text_dispersion(_by_class(text_features, attributes)).mean(dim=-1)


def _by_class(text_features: Tensor, attributes: int) -> Tensor:
    """Reshape (…, C·A, D) to (…, C, A, D)."""
    return text_features.unflatten(-2, (-1, attributes))
