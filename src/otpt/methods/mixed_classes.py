"""Named classes next to classes that have only example images: ``fit_mixed("prototypes", features, labels, …)``.

A named class keeps the logit of its text. The name of an example class means nothing to the model, and cosines between
images (0.5 to 0.9 in CLIP) are on another scale than those between images and texts (0.15 to 0.35). With the image
feature f, logit scale s and bias b, the logit of a class g with n example images is

    ℓ_g(f) = s·f·w_g + b + δ + κ·s·n/(n + 1)·(a_g(f) − ρ_g)

- w_g, the mean text feature of the ten common nouns that fit the examples best, takes the place of the missing text. Its
  logit is on the scale of texts for any image, also for those of named classes (as ConSE, Norouzi et al., ICLR 2014).
- δ = 4.5 is what a text of the class itself has more on its images than those nouns have on average.
- a_g(f) is the score of the examples, and ρ_g its mean on images of the class, estimated from held-out examples. The
  term is zero for a typical image of the class, so it changes no scale, and negative for images that differ from the
  examples. κ = 0.35; n/(n + 1) since a mean over few images is noisy.

| kind | a_g(f) |
|---|---|
| ``prototypes`` | f·μ_g, μ_g the mean of the examples: the mean cosine with them |
| ``tip-adapter`` | mean over the examples of exp(−β(1 − f·g_j)), β = 5.5 |
| ``gda`` | f·Λμ_g, Λ of :func:`gda` with ρ = 0.6, scaled such that Σ_g μ_g·Λμ_g = Σ_g μ_g·μ_g |

ρ_g is shrunk: two pseudo-images have the score of an image whose cosine with the examples is 0.75. All constants are
fixed; fitting κ or δ to held-out examples was worse, since there are no images of the named classes to hold against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.calibration.maps import stratified_folds
from otpt.methods.example_scorers import FOLDS, Cache, Linear, Scorer, class_means, gda, tip_adapter

NOUNS = 10
MARGIN = 4.5
WEIGHT = 0.35
SHRINKAGE = 0.6
MEMBER_COSINE, PRIOR_IMAGES = 0.75, 2
"""Cosine between images of one class if nothing is known, and its weight in held-out images."""


@dataclass(frozen=True, eq=False)
class MixedScorer:
    """Logits of named and example classes in one list.

    Attributes:
        columns: (G,) indices of the example classes in the list.
        texts: logits of the nouns that replace the texts of the example classes, with all constants.
        scorer: scores of the examples, (…, D) → (…, G).
        weights: (G,) weights of the scores.
    """

    columns: Tensor
    texts: Linear
    scorer: Scorer
    weights: Tensor

    def __call__(self, image_features: Tensor, text_logits: Tensor) -> Tensor:
        """Replace the columns of the example classes: (…, D) and (…, C) → (…, C)."""
        logits = self.texts(image_features) + self.weights * self.scorer(image_features)
        return text_logits.index_copy(-1, self.columns, logits.to(text_logits.dtype))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> MixedScorer:
        """Move all tensors to a device and the floating-point ones to a dtype."""
        scorer: Scorer
        if isinstance(self.scorer, Cache):
            scorer = Cache(self.scorer.keys.to(device, dtype), self.scorer.values.to(device, dtype), self.scorer.beta)
        else:
            scorer = Linear(self.scorer.weights.to(device, dtype), self.scorer.biases.to(device, dtype))
        texts = Linear(self.texts.weights.to(device, dtype), self.texts.biases.to(device, dtype))
        weights = self.weights.to(device, dtype)
        return replace(self, columns=self.columns.to(device), texts=texts, scorer=scorer, weights=weights)


def fit_mixed(
    kind: str,
    features: Tensor,
    labels: Tensor,
    *,
    word_features: Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
) -> MixedScorer:
    """Fit the logits of example classes; classes without examples are named.

    Args:
        kind: "prototypes", "tip-adapter" or "gda".
        features: unit features (N, D) of the example images.
        labels: class indices (N,) of the examples in the list of all classes.
        word_features: unit text features (M, D) of common nouns, without the named classes.
        logit_scale: scale of the model's logits.
        logit_bias: bias of the model's logits.

    Returns:
        Scorer in float64.
    """
    features, word_features = features.double(), word_features.double()
    columns, members = labels.unique(return_inverse=True)
    counts = torch.bincount(members).double()
    similarity = class_means(features, members, len(columns)) @ word_features.mT
    best = similarity.topk(min(NOUNS, len(word_features)), dim=-1).indices
    nouns = word_features[best].mean(dim=1)
    weights = WEIGHT * logit_scale * counts / (counts + 1)
    biases = logit_bias + MARGIN - weights * member_scores(kind, features, members)
    return MixedScorer(columns, Linear(logit_scale * nouns, biases), fit_scorer(kind, features, members), weights)


def fit_scorer(kind: str, features: Tensor, labels: Tensor, classes: int | None = None) -> Scorer:
    """Fit the scores of examples (N, D) with labels (N,); all kinds have the scale of a cosine."""
    classes = classes or int(labels.max()) + 1
    if kind == "tip-adapter":
        return tip_adapter(features, labels, classes)
    means = class_means(features, labels, classes)
    weights = means
    if kind == "gda":
        weights = gda(features, labels, classes, shrinkage=SHRINKAGE).weights
        weights = weights * (means.square().sum() / (means * weights).sum())
    return Linear(weights, means.new_zeros(classes))


def member_scores(kind: str, features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean score (G,) of each class on its own held-out examples (ten folds), shrunk to a prior."""
    classes = int(labels.max()) + 1
    first = features[:1]
    prior = fit_scorer(kind, first, labels.new_zeros(1))(MEMBER_COSINE * first)[0, 0]
    fold = torch.from_numpy(stratified_folds(labels.numpy(), FOLDS))
    scores = features.new_zeros(len(labels))
    for k in fold.unique():
        inside = fold != k
        if inside.any():
            held_out = fit_scorer(kind, features[inside], labels[inside], classes)(features[~inside])
            scores[~inside] = held_out.gather(1, labels[~inside, None])[:, 0]
    images = F.one_hot(labels, classes).sum(dim=0) - 1  # left in a fold, and zero for a class that cannot be held out
    held_out_means = class_means(scores[:, None], labels, classes)[:, 0]
    return (images * held_out_means + PRIOR_IMAGES * prior) / (images + PRIOR_IMAGES)
