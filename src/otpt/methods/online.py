"""Class priors and classifiers that follow a stream: OnZeta, PTA, LSA and a label prior. The order of images matters.

OnZeta and LSA need the number of images in advance; an evaluation passes it, otherwise ``--set stream-length=N``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.caches import in_first_row, summarise
from otpt.registry import Count, Fraction, NonNegative, Positive, Probability, adaptation

_LENGTH = 10_000
_ENTERS_FROM = 0.1
"""PTA: classes of at least this probability take the image."""
_ONZETA = "Qian and Hu, ECCV 2024, arXiv 2408.13320"


@adaptation(needs_views=False, shared_texts=True, source=_ONZETA)
@adaptation(
    name="onlab",
    needs_views=False,
    shared_texts=True,
    summary="OnZeta's online labels alone: class multipliers that balance the predictions of the stream.",
    source=_ONZETA,
    settings={"onzeta_beta": 0},
)
def onzeta(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    state: dict[str, Any],
    stream_length: Count = _LENGTH,
    onzeta_beta: Probability = 0.8,
    onzeta_balance: NonNegative = 1.0,
    onzeta_label_rate: NonNegative = 20.0,
    onzeta_proxy_rate: NonNegative = 0.5,
    onzeta_temperature: Positive = 0.04,
) -> Tensor:
    """OnZeta: class multipliers that balance the stream, mixed with a classifier that is learned along it.

    p = b·v + (1 − b)·t, t ∝ softmax(ℓ)·exp(ρ), v = softmax(f·wᵀ/τ), b = β·√(i/n) for image i of n.
    Then ρ ← max(ρ − (c_r/√i)·(t − α/C), 0) and w_c ← unit(w_c − c_w/(√i·τ)·(v_c − t_c)·f), from ρ = 0 and w = E.

    Args:
        features, logits, text_features: (V, D), (V, C) and (C, D).
        stream_length: n; b stays β after image n.
        onzeta_balance, onzeta_label_rate, onzeta_proxy_rate, onzeta_temperature: α, c_r, c_w, τ. α = 1 pushes
            towards equal class frequencies, 0 switches the multipliers off.

    Returns:
        log p, (V, C): the first row is the prediction, the others are the further views with the same ρ and w.
    """
    if not state:
        state.update(multipliers=torch.zeros_like(logits[0]), proxies=text_features.clone(), images=0)
    state["images"] += 1
    root = math.sqrt(state["images"])
    of_texts = (logits + state["multipliers"]).softmax(dim=-1)
    of_proxies = (features @ state["proxies"].mT / onzeta_temperature).softmax(dim=-1)
    share = onzeta_beta * min(math.sqrt(state["images"] / stream_length), 1.0)
    step = onzeta_label_rate / root * (of_texts[0] - onzeta_balance / len(text_features))
    state["multipliers"] = (state["multipliers"] - step).clamp(min=0)
    moves = onzeta_proxy_rate / (root * onzeta_temperature) * (of_proxies[0] - of_texts[0])
    state["proxies"] = normalize(state["proxies"] - moves[:, None] * features[0], dim=-1)
    return _log(share * of_proxies + (1 - share) * of_texts)


_PTA = {"pta_period": {"caltech101": 50, "others": 20}, "mean_views": {"fine-grained": 0, "shift": 1}}


@adaptation(views_if=("mean_views",), shared_texts=True, source="ICML 2026, arXiv 2604.21360", settings=_PTA)
@adaptation(
    name="pta-released",
    views_if=("mean_views",),
    shared_texts=True,
    summary="PTA as released: the refined texts of the last image take the place of the texts, which fade at once.",
    source="ICML 2026, arXiv 2604.21360, released code",
    settings={**_PTA, "pta_feed_back": 1},
)
def pta(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: dict[str, Any],
    pta_text_weight: Probability = 0.01,
    pta_period: Positive = 20.0,
    pta_feed_back: bool = False,
    mean_views: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """PTA: a running mean of likely images per class, mixed into the text features.

    ℓ'_c = ℓ_c + s·f·r_c, r_c = unit(α·e_c + (1 − α)·u_c). First u_c ← (1 − g)·u_c + g·f, g = 1 − exp(−p_c/T), for
    classes with p_c ≥ 0.1, from u = 0. ℓ' is a sum of two terms of CLIP's scale, so it is about twice as sharp.

    Args:
        features, logits, text_features: (V, D), (V, C) and (C, D). f, ℓ, p are those of the clean view, or with
            ``mean_views`` means over the int(V·``stream_ratio``) most confident views.
        pta_text_weight, pta_period: α, T.
        pta_feed_back: take the previous r_c in place of e_c, as the released code does.

    Returns:
        (V, C): the first row is the prediction, the others are the further views with the same r.
    """
    image = summarise(features, logits, mean=mean_views, ratio=stream_ratio)
    p = image.logits.softmax(dim=-1)
    prototypes = state.get("prototypes", torch.zeros_like(text_features))
    gain = torch.where(p >= _ENTERS_FROM, -torch.expm1(-p / pta_period), 0)[:, None]
    state["prototypes"] = (1 - gain) * prototypes + gain * image.feature
    texts = state.get("refined", text_features) if pta_feed_back else text_features
    refined = normalize(pta_text_weight * texts + (1 - pta_text_weight) * state["prototypes"], dim=-1)
    if pta_feed_back:
        state["refined"] = refined
    rows, own = in_first_row(image.feature, features), in_first_row(image.logits, logits)
    return own + logit_scale * rows @ refined.mT


# λ₀, the number of passes and the Dirichlet prior are in a supplement that is not public; these numbers are ours.
@adaptation(needs_views=False, source="arXiv 2606.15169 (2026), from its text; λ and passes are ours")
def lsa(
    logits: Tensor,
    state: dict[str, Any],
    stream_length: Count = _LENGTH,
    lsa_weight: Probability = 0.9,
    lsa_passes: Count = 10,
    lsa_as_printed: bool = False,
) -> Tensor:
    """LSA: divide by the class prior of the stream so far, estimated by EM; it balances the classes.

    p'_c ∝ p_c/π_c, with π by EM over all t images so far: g_ic ∝ π_c p_ic, π_c = λ·mean_i g_ic + (1 − λ)/C,
    λ = λ₀·t/n, from 1/C. The image itself is among them. Under label shift p·π would follow, not p/π: it suits
    streams whose classes are balanced, and harms others. The state holds t·C numbers.

    Args:
        logits: (V, C).
        stream_length: n; λ stays λ₀ after image n.
        lsa_weight, lsa_passes: λ₀, and the passes of EM after the first one.
        lsa_as_printed: divide the sum of t terms by n, as the paper prints it.

    Returns:
        log p', (V, C), with the same π in all rows.
    """
    count = state.get("images", 0) + 1
    stored = state.get("probabilities", logits.new_empty(64, logits.shape[1]))
    if count > len(stored):
        stored = torch.cat([stored, torch.empty_like(stored)])
    stored[count - 1] = logits[0].softmax(dim=-1)
    state.update(probabilities=stored, images=count)
    seen, classes = stored[:count], logits.shape[1]
    weight = lsa_weight * min(count / stream_length, 1.0)
    divisor = max(stream_length, count) if lsa_as_printed else count
    prior = torch.full_like(logits[0], 1 / classes)
    for _ in range(lsa_passes + 1):
        totals = (seen @ prior).clamp(min=torch.finfo(seen.dtype).tiny)
        prior = weight * prior * (totals.reciprocal() @ seen) / divisor + (1 - weight) / classes
    return logits.log_softmax(dim=-1) - prior.clamp(min=torch.finfo(prior.dtype).tiny).log()


@adaptation(needs_views=False, source="ours")
def label_prior(logits: Tensor, state: dict[str, Any], prior_weight: Positive = 10.0) -> Tensor:
    """Multiply by the class frequencies of the stream so far, a running mean of the predictions.

    p'_c ∝ p_c·π_c, then π ← (m·π + p')/(m + 1), m ← m + 1, from π = 1/C and m = 10·C. It suits streams whose classes
    are unequal, and does the opposite of ``lsa``.

    Args:
        logits: (V, C).
        prior_weight: images per class that the uniform start counts for.

    Returns:
        log p', (V, C), with the same π in all rows.
    """
    classes = logits.shape[1]
    prior, weight = state.get("prior"), state.get("weight", prior_weight * classes)
    prior = torch.full_like(logits[0], 1 / classes) if prior is None else prior
    adapted = (logits + prior.log()).log_softmax(dim=-1)
    state.update(prior=(weight * prior + adapted[0].exp()) / (weight + 1), weight=weight + 1)
    return adapted


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
