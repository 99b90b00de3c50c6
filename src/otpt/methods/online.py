"""Class priors, classifiers and labels that follow a stream: OnZeta, PTA, LSA, a label prior and ECALP.

For arguments and results see :mod:`otpt.methods.caches`. OnZeta and LSA need the number of images in advance, from the
evaluation or ``--set stream-length=N``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from otpt.methods.caches import in_first_row, summarise
from otpt.registry import (
    Count,
    Entries,
    Fraction,
    NonNegative,
    Positive,
    Probability,
    Rounds,
    State,
    adaptation,
    carried,
)
from otpt.threads import cancellable_loop

_LENGTH = 10_000
_ENTERS_FROM = 0.1
"""PTA: minimum probability of the classes that an image updates."""
_ONZETA = "Qian and Hu, ECCV 2024, arXiv 2408.13320"


@dataclass(frozen=True)
class OnzetaSettings:
    """Settings of OnZeta.

    Attributes:
        stream_length: n; b stays β after image n.
        onzeta_beta: β.
        onzeta_balance: α; 1 pushes towards equal class frequencies, 0 switches the multipliers off.
        onzeta_label_rate, onzeta_proxy_rate: c_r and c_w.
        onzeta_temperature: τ.
    """

    stream_length: Count = _LENGTH
    onzeta_beta: Probability = 0.8
    onzeta_balance: NonNegative = 1.0
    onzeta_label_rate: NonNegative = 20.0
    onzeta_proxy_rate: NonNegative = 0.5
    onzeta_temperature: Positive = 0.04


@dataclass
class _Proxies:
    """State of OnZeta: multipliers ρ (C,), classifier w (C, D) and the number of images."""

    multipliers: Tensor
    proxies: Tensor
    images: int = 0


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
    state: State,
    settings: OnzetaSettings = OnzetaSettings(),
) -> Tensor:
    """OnZeta: class multipliers that balance the stream, mixed with a classifier that is learned along it.

    p = b·v + (1 − b)·t, t ∝ softmax(ℓ)·exp(ρ), v = softmax(f·wᵀ/τ), b = β·√(i/n) for image i of n.
    Then ρ ← max(ρ − (c_r/√i)·(t − α/C), 0) and w_c ← unit(w_c − c_w/(√i·τ)·(v_c − t_c)·f), from ρ = 0 and w = E.
    Returns log p. The settings are those of :class:`OnzetaSettings`.
    """
    stream = carried(state, "proxies", lambda: _Proxies(torch.zeros_like(logits[0]), text_features.clone()))
    stream.images += 1
    root = math.sqrt(stream.images)
    of_texts = (logits + stream.multipliers).softmax(dim=-1)
    of_proxies = (features @ stream.proxies.mT / settings.onzeta_temperature).softmax(dim=-1)
    share = settings.onzeta_beta * min(math.sqrt(stream.images / settings.stream_length), 1.0)
    step = settings.onzeta_label_rate / root * (of_texts[0] - settings.onzeta_balance / len(text_features))
    stream.multipliers = (stream.multipliers - step).clamp(min=0)
    moves = settings.onzeta_proxy_rate / (root * settings.onzeta_temperature) * (of_proxies[0] - of_texts[0])
    stream.proxies = normalize(stream.proxies - moves[:, None] * features[0], dim=-1)
    return _log(share * of_proxies + (1 - share) * of_texts)


_PTA = {"pta_period": {"caltech101": 50, "others": 20}, "mean_views": {"fine-grained": 0, "shift": 1}}


@dataclass(frozen=True)
class PtaSettings:
    """Settings of PTA: α, T, whether to follow the released code, and which views are averaged."""

    pta_text_weight: Probability = 0.01
    pta_period: Positive = 20.0
    pta_feed_back: bool = False
    mean_views: bool = False
    stream_ratio: Fraction = 0.1


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
    state: State,
    settings: PtaSettings = PtaSettings(),
) -> Tensor:
    """PTA: a running mean of likely images per class, mixed into the text features.

    ℓ'_c = ℓ_c + s·f·r_c, r_c = unit(α·e_c + (1 − α)·u_c). First u_c ← (1 − g)·u_c + g·f, g = 1 − exp(−p_c/T), for
    classes with p_c ≥ 0.1, from u = 0. ℓ' is a sum of two terms of CLIP's scale, so it is about twice as sharp.
    ``pta_text_weight`` and ``pta_period`` are α and T. ``pta_feed_back`` takes the previous r_c for e_c, as the
    released code does.
    """
    weight = settings.pta_text_weight
    image = summarise(features, logits, mean=settings.mean_views, ratio=settings.stream_ratio)
    p = image.logits.softmax(dim=-1)
    before = carried(state, "prototypes", lambda: torch.zeros_like(text_features))
    gain = torch.where(p >= _ENTERS_FROM, -torch.expm1(-p / settings.pta_period), 0)[:, None]
    prototypes = (1 - gain) * before + gain * image.feature
    state["prototypes"] = prototypes
    texts = carried(state, "refined", lambda: text_features) if settings.pta_feed_back else text_features
    refined = normalize(weight * texts + (1 - weight) * prototypes, dim=-1)
    if settings.pta_feed_back:
        state["refined"] = refined
    rows = in_first_row(image.feature, features)
    initial = in_first_row(image.logits, logits)
    return initial + logit_scale * rows @ refined.mT


# λ₀, the number of passes and the Dirichlet prior are in a supplement that is not public; these numbers are ours.
@adaptation(needs_views=False, source="arXiv 2606.15169 (2026), from its text; λ and passes are ours")
def lsa(
    logits: Tensor,
    state: State,
    stream_length: Count = _LENGTH,
    lsa_weight: Probability = 0.9,
    lsa_passes: Rounds = 10,
    lsa_as_printed: bool = False,
) -> Tensor:
    """LSA: divide by the class prior of the stream so far, estimated by EM; it balances the classes.

    p'_c ∝ p_c/π_c, with π by EM over all t images so far: g_ic ∝ π_c p_ic, π_c = λ·mean_i g_ic + (1 − λ)/C,
    λ = λ₀·t/n, from 1/C, including the image itself. Under label shift p·π would follow, not p/π: it suits streams
    whose classes are balanced, and harms others. The state holds t·C numbers. Returns log p'.

    Args:
        stream_length: n; λ stays λ₀ after image n.
        lsa_weight, lsa_passes: λ₀, and the passes of EM after the first one.
        lsa_as_printed: divide the sum of t terms by n, as the paper prints it.
    """
    count = carried(state, "images", int) + 1
    stored = carried(state, "probabilities", lambda: logits.new_empty(64, logits.shape[1]))
    if count > len(stored):
        stored = torch.cat([stored, torch.empty_like(stored)])
    stored[count - 1] = logits[0].softmax(dim=-1)
    state.update(probabilities=stored, images=count)
    seen, classes = stored[:count], logits.shape[1]
    weight = lsa_weight * min(count / stream_length, 1.0)
    divisor = max(stream_length, count) if lsa_as_printed else count
    prior = torch.full_like(logits[0], 1 / classes)
    for _ in cancellable_loop(range(lsa_passes + 1)):
        totals = (seen @ prior).clamp(min=torch.finfo(seen.dtype).tiny)
        prior = weight * prior * (totals.reciprocal() @ seen) / divisor + (1 - weight) / classes
    return logits.log_softmax(dim=-1) - prior.clamp(min=torch.finfo(prior.dtype).tiny).log()


@adaptation(needs_views=False, source="ours")
def label_prior(logits: Tensor, state: State, prior_weight: Positive = 10.0) -> Tensor:
    """Multiply by the class frequencies of the stream so far, a running mean of the predictions.

    p'_c ∝ p_c·π_c, then π ← (m·π + p')/(m + 1), m ← m + 1, from π = 1/C and m = w·C with the weight w of the uniform
    start, ``prior_weight``. It suits streams whose classes are unequal, the opposite of ``lsa``. Returns log p'.
    """
    classes = logits.shape[1]
    prior = carried(state, "prior", lambda: torch.full_like(logits[0], 1 / classes))
    weight = carried(state, "weight", lambda: prior_weight * classes)
    adapted = (logits + prior.log()).log_softmax(dim=-1)
    state.update(prior=(weight * prior + adapted[0].exp()) / (weight + 1), weight=weight + 1)
    return adapted


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


# ---- label propagation: ECALP ---------------------------------------------------------------------------------------

_POWER = 10
_EPSILON = 1e-6


# Released confidences are softmax(10⁴·scores), practically 1. An image and its copy are equally near to every other;
# where a list ends between them, torch.topk in the released code takes either, ours the image: scores differ by up to
# 1e-2. While the store grows from k + 1 to k + 3 images the released lists lose neighbours: up to 5e-4. Both are not
# copied; without them the difference is 5e-16.
@adaptation(
    needs_views=False,
    shared_texts=True,
    source="Li et al., ICLR 2025, arXiv 2412.18303",
    caution="its scores are shares of propagated labels; calibrate them before they are read as probabilities.",
)
def ecalp(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    state: State,
    ecalp_texts: Count = 3,
    ecalp_images: Entries = 8,
    ecalp_rounds: Rounds = 3,
    ecalp_memory: Fraction = 0.2,
) -> Tensor:
    """ECALP: labels spread from the texts over a graph of all images so far; p is the share of each class.

    Each image is joined with its 8 nearest images and 3 nearest texts, with weights cos¹⁰ (0 for negative cosines);
    between images coordinates are weighted by their variance over the texts. W ← W + Wᵀ, and W_ab is divided by
    (√d_a + 1e-6)(√d_b + 1e-6), d the row sums. Three times Y ← WY with the texts' rows fixed at I, from 0 for the image
    and 0.2 × its last largest score for each earlier image. The image is in the graph twice; its copy is read.
    State and time per image grow with the stream: t·(D + 22) numbers, about 66·t·C multiplications. Returns log p;
    further views keep their zero-shot predictions.
    """
    graph = carried(state, "graph", lambda: _Graph(text_features, ecalp_images))
    graph.add(features[0], text_features, min(ecalp_texts, len(text_features)))
    scores = graph.propagate(ecalp_rounds, ecalp_memory)
    shares = scores / scores.sum().clamp(min=torch.finfo(scores.dtype).tiny)
    return in_first_row(_log(shares), logits.log_softmax(dim=-1))


class _Graph:
    """Nearest-neighbour graph of the images of a stream.

    Attributes:
        weighted: (t, D) unit features, coordinates weighted by their variance over the texts.
        near, cosines: (t, k) nearest images, themselves included, and their similarities; −inf where there are fewer.
        texts, of_texts: (t, m) nearest texts and the weights of these edges.
        best, scores: (t,) class of the last largest score, and the score.
    """

    def __init__(self, texts: Tensor, neighbours: int) -> None:
        empty = texts.new_empty
        self._classes, self._neighbours = len(texts), neighbours
        self._coordinates = normalize(texts.var(dim=0), dim=0)
        self.weighted = empty(0, texts.shape[1])
        self.near, self.cosines = empty(0, neighbours, dtype=torch.long), empty(0, neighbours)
        self.texts, self.of_texts = empty(0, 0, dtype=torch.long), empty(0, 0)
        self.best, self.scores = empty(0, dtype=torch.long), empty(0)

    def add(self, feature: Tensor, text_features: Tensor, texts: int) -> None:
        """Add an image (D,) and update the neighbour lists; among equal cosines the earlier image ranks first."""
        weighted = normalize(self._coordinates * feature, dim=0)[None]
        self.weighted = torch.cat([self.weighted, weighted])
        cosines = self.weighted @ normalize(feature, dim=0)
        self.near, self.cosines = self._inserted(cosines[:-1])
        order = cosines.argsort(descending=True, stable=True)[: self._neighbours]
        missing = self._neighbours - len(order)
        self.near = torch.cat([self.near, pad(order, (0, missing))[None]])
        padded = pad(cosines[order], (0, missing), value=-torch.inf)
        self.cosines = torch.cat([self.cosines, padded[None]])
        nearest = (text_features @ feature).topk(texts)
        self.texts = torch.cat([self.texts.view(-1, texts), nearest.indices[None]])
        self.of_texts = torch.cat([self.of_texts.view(-1, texts), nearest.values.clamp(min=0)[None] ** _POWER])
        self._own = cosines

    def _inserted(self, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neighbour lists after inserting an image with cosines (t,) to all others."""
        near = torch.cat([self.near, torch.full_like(self.near[:, :1], len(self.near))], dim=1)
        both = torch.cat([self.cosines, cosines[:, None]], dim=1)
        values, order = both.sort(dim=1, descending=True, stable=True)
        return near.gather(1, order[:, :-1]), values[:, :-1]

    def propagate(self, rounds: int, memory: float) -> Tensor:
        """Return the scores (C,) of the last image, read from its copy, and update those of all other images."""
        near, cosines = self._inserted(self._own)
        near, cosines = torch.cat([near, near[-1:]]), torch.cat([cosines, cosines[-1:]])
        texts = torch.cat([self.texts, self.texts[-1:]])
        of_texts = torch.cat([self.of_texts, self.of_texts[-1:]])
        weights = cosines.clamp(min=0) ** _POWER
        images, flat = len(near), near.flatten()
        degrees = (weights.sum(dim=1) + of_texts.sum(dim=1)).index_add(0, flat, weights.flatten())
        text_degrees = weights.new_zeros(self._classes).index_add(0, texts.flatten(), of_texts.flatten())
        inverse_roots, text_inverse_roots = 1 / (degrees.sqrt() + _EPSILON), 1 / (text_degrees.sqrt() + _EPSILON)
        from_texts = weights.new_zeros(images, self._classes)
        from_texts.scatter_add_(1, texts, of_texts * inverse_roots[:, None] * text_inverse_roots[texts])
        rows = torch.arange(images, device=near.device).repeat_interleave(near.shape[1])
        values = weights.flatten() * inverse_roots[rows] * inverse_roots[flat]
        both = torch.stack([torch.cat([rows, flat]), torch.cat([flat, rows])])
        values = torch.cat([values, values])
        edges = torch.sparse_coo_tensor(both, values, (images, images), check_invariants=False).coalesce()
        labels = torch.zeros_like(from_texts)
        earlier = torch.arange(len(self.best), device=near.device)
        labels[earlier, self.best] = memory * self.scores
        for _ in cancellable_loop(range(rounds)):
            labels = from_texts + torch.sparse.mm(edges, labels)
        self.scores, self.best = labels[:-1].max(dim=1)
        return labels[-1]
