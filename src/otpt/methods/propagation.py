"""Label propagation over the images of a stream and the texts: ECALP. The order of images matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.caches import in_first_row
from otpt.registry import Count, Fraction, adaptation

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
    state: dict[str, Any],
    ecalp_texts: Count = 3,
    ecalp_images: Count = 8,
    ecalp_rounds: Count = 3,
    ecalp_memory: Fraction = 0.2,
) -> Tensor:
    """ECALP: labels spread from the texts over a graph of all images so far; p is the share of each class.

    Each image is joined with its 8 nearest images and 3 nearest texts, with weights cos¹⁰ (0 for negative cosines);
    between images coordinates are weighted by their variance over the texts. W ← W + Wᵀ, and W_ab is divided by
    (√d_a + 1e-6)(√d_b + 1e-6), d the row sums. Three times Y ← WY with the texts' rows fixed at I, from 0 for the image
    and 0.2 × its last largest score for each earlier image. The image is in the graph twice; its copy is read.
    State and time per image grow with the stream: t·(D + 22) numbers, about 66·t·C multiplications.

    Args:
        features, logits, text_features: (V, D), (V, C) and (C, D).

    Returns:
        log p, (V, C): the first row is the prediction, further views keep their zero-shot predictions.
    """
    graph: _Graph = state.setdefault("graph", _Graph(text_features, ecalp_images))
    graph.add(features[0], text_features, min(ecalp_texts, len(text_features)))
    scores = graph.propagate(ecalp_rounds, ecalp_memory)
    tiny = torch.finfo(scores.dtype).tiny
    return in_first_row((scores / scores.sum().clamp(min=tiny)).clamp(min=tiny).log(), logits.log_softmax(dim=-1))


class _Graph:
    """Images of a stream with their neighbours.

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
        """Add an image (D,), also to the lists of the earlier ones; an equal cosine keeps the earlier image first."""
        weighted = normalize(self._coordinates * feature, dim=0)[None]
        self.weighted = torch.cat([self.weighted, weighted])
        own = self.weighted @ normalize(feature, dim=0)
        self.near, self.cosines = self._inserted(own[:-1])
        order = own.argsort(descending=True, stable=True)[: self._neighbours]
        missing = self._neighbours - len(order)
        self.near = torch.cat([self.near, torch.nn.functional.pad(order, (0, missing))[None]])
        padded = torch.nn.functional.pad(own[order], (0, missing), value=-torch.inf)
        self.cosines = torch.cat([self.cosines, padded[None]])
        nearest = (text_features @ feature).topk(texts)
        self.texts = torch.cat([self.texts.view(-1, texts), nearest.indices[None]])
        self.of_texts = torch.cat([self.of_texts.view(-1, texts), nearest.values.clamp(min=0)[None] ** _POWER])
        self._own = own

    def _inserted(self, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """Lists in which the next image, which has these cosines (t,) to all, replaces the last where it is nearer."""
        near = torch.cat([self.near, torch.full_like(self.near[:, :1], len(self.near))], dim=1)
        both = torch.cat([self.cosines, cosines[:, None]], dim=1)
        values, order = both.sort(dim=1, descending=True, stable=True)
        return near.gather(1, order[:, :-1]), values[:, :-1]

    def propagate(self, rounds: int, memory: float) -> Tensor:
        """Scores (C,) of the last image, read from a second copy of it; the scores of all others are renewed."""
        near, cosines = self._inserted(self._own)
        near, cosines = torch.cat([near, near[-1:]]), torch.cat([cosines, cosines[-1:]])
        texts = torch.cat([self.texts, self.texts[-1:]])
        of_texts = torch.cat([self.of_texts, self.of_texts[-1:]])
        weights = cosines.clamp(min=0) ** _POWER
        images, flat = len(near), near.flatten()
        degrees = (weights.sum(dim=1) + of_texts.sum(dim=1)).index_add(0, flat, weights.flatten())
        text_degrees = weights.new_zeros(self._classes).index_add(0, texts.flatten(), of_texts.flatten())
        own, roots = 1 / (degrees.sqrt() + _EPSILON), 1 / (text_degrees.sqrt() + _EPSILON)
        from_texts = weights.new_zeros(images, self._classes)
        from_texts.scatter_add_(1, texts, of_texts * own[:, None] * roots[texts])
        rows = torch.arange(images, device=near.device).repeat_interleave(near.shape[1])
        values = weights.flatten() * own[rows] * own[flat]
        both = torch.stack([torch.cat([rows, flat]), torch.cat([flat, rows])])
        values = torch.cat([values, values])
        edges = torch.sparse_coo_tensor(both, values, (images, images), check_invariants=False).coalesce()
        labels = torch.zeros_like(from_texts)
        earlier = torch.arange(len(self.best), device=near.device)
        labels[earlier, self.best] = memory * self.scores
        for _ in range(rounds):
            labels = from_texts + torch.sparse.mm(edges, labels)
        self.scores, self.best = labels[:-1].max(dim=1)
        return labels[-1]
