"""Named classes next to classes that have only example images: ``fit_mixed("gda", features, labels, …)``.

A named class keeps the logit of its text. The name of an example class means nothing to the model, and cosines between
images (0.5 to 0.9 in CLIP) are on another scale than cosines of images and texts (0.15 to 0.35). With the image feature
f, logit scale s and bias b, a class g with n examples of mean feature μ_g gets a logit that is comparable with texts:

    ℓ_g(f) = s·f·w_g + b + δ + κ·s·n/(n + 1)·(f·μ_g − ρ_g)

- w_g, the mean text feature of the ten common nouns that fit the examples best, replaces the missing text, so that the
  logit is on the scale of texts for every image (as in ConSE, Norouzi et al., ICLR 2014).
- δ = 4.5: on its images, the text of a class has a higher logit than such nouns have on average.
- ρ_g, the mean cosine of two images of the class, centres the similarity to the examples: zero for a typical member,
  negative for other images. It is estimated from the pairs of examples, and from a prior of 0.75 that counts as much as
  two images: ρ_g = (n·‖μ_g‖² − 1 + 2·0.75)/(n + 1). κ = 0.35; a mean over few images is noisy, hence n/(n + 1).

These constants decide between named and example classes. They are not fitted: examples alone, without images of the
named classes, pull δ and κ up. The decision among several example classes can be fitted, from four images per class on
average. Then :func:`fit_examples` gives logits e_g of the examples and of w_g as a text, and

    ℓ'_g(f) = log Σ_h exp ℓ_h(f) + log softmax_g e(f)

which leaves the probability of the named classes as it was. With fewer images all kinds give ℓ_g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otpt.calibration.maps import stratified_folds
from otpt.errors import unknown
from otpt.methods.example_scorers import FOLDS, SCORERS, Fitted, Linear, class_means, fit_examples

NOUNS = 10
MARGIN = 4.5
WEIGHT = 0.35
MEMBER_COSINE, PRIOR_IMAGES = 0.75, 2
FIT_FROM = 4
"""Examples per class from which weights among example classes are fitted: two or three say little when held out."""


@dataclass(frozen=True, eq=False)
class MixedScorer:
    """Logits of named and example classes in one list.

    Attributes:
        columns: (G,) indices of the example classes in the list of all classes.
        anchors: ℓ_g, comparable with the logits of texts: (…, D) → (…, G).
        nouns: logits of the nouns that replace the texts: (…, D) → (…, G).
        fitted: weights among the example classes; None for a single one or few images.
    """

    columns: Tensor
    anchors: Linear
    nouns: Linear
    fitted: Fitted | None = None

    def __call__(self, image_features: Tensor, text_logits: Tensor) -> Tensor:
        """Replace the columns of the example classes: (…, D) and (…, C) → (…, C)."""
        logits = self.anchors(image_features)
        if self.fitted is not None:
            among = self.fitted.text_weight * self.nouns(image_features)
            among = among + self.fitted.weight * self.fitted.scorer(image_features)
            logits = logits.logsumexp(dim=-1, keepdim=True) + among.log_softmax(dim=-1)
        return text_logits.index_copy(-1, self.columns, logits.to(text_logits.dtype))

    def to(self, device: torch.device, dtype: torch.dtype) -> MixedScorer:
        """Move all tensors to a device, and those of floating-point numbers to a dtype."""
        anchors = Linear(self.anchors.weights.to(device, dtype), self.anchors.biases.to(device, dtype))
        nouns = Linear(self.nouns.weights.to(device, dtype), self.nouns.biases.to(device, dtype))
        fitted = None if self.fitted is None else self.fitted.to(device, dtype)
        return replace(self, columns=self.columns.to(device), anchors=anchors, nouns=nouns, fitted=fitted)


def fit_mixed(
    kind: str, features: Tensor, labels: Tensor, *, word_features: Tensor, logit_scale: float, logit_bias: float = 0.0
) -> MixedScorer:
    """Fit the logits of example classes, to be put next to text logits of the named classes.

    Args:
        kind: scorer among the example classes, "prototypes", "tip-adapter" or "gda".
        features: unit features (N, D) of the example images.
        labels: indices (N,) of their classes in the list of all classes; classes without an example are named.
        word_features: unit text features (M, D) of common nouns that are not named classes.
        logit_scale: scale of the model's text logits.
        logit_bias: bias of the model's text logits.

    Returns:
        Scorer in float64 on the CPU.
    """
    if kind not in SCORERS:
        raise unknown("kind of scorer", kind, SCORERS)
    features, labels, words = features.double().cpu(), labels.cpu(), word_features.double().cpu()
    columns, members = labels.unique(return_inverse=True)
    classes = len(columns)
    counts = torch.bincount(members).double()
    means = class_means(features, members, classes)
    nouns = logit_scale * nearest_words(means, words)
    weights = WEIGHT * logit_scale * counts / (counts + 1)
    pairs = counts * means.square().sum(dim=-1) - 1  # n − 1 times the mean cosine of two examples
    typical = (pairs + PRIOR_IMAGES * MEMBER_COSINE) / (counts - 1 + PRIOR_IMAGES)
    anchors = Linear(nouns + weights[:, None] * means, logit_bias + MARGIN - weights * typical)
    fitted = None
    if classes > 1 and len(features) >= FIT_FROM * classes:
        fold = torch.from_numpy(stratified_folds(members.numpy(), FOLDS))  # as in fit_examples
        texts = features.new_empty(len(features), classes)
        for k in fold.unique():
            held_out = fold == k
            means = class_means(features[~held_out], members[~held_out], classes)
            texts[held_out] = logit_scale * features[held_out] @ nearest_words(means, words).mT
        fitted = fit_examples(kind, features, members, classes, logit_scale=logit_scale, texts=texts)
    return MixedScorer(columns, anchors, Linear(nouns, nouns.new_zeros(classes)), fitted)


def nearest_words(means: Tensor, words: Tensor) -> Tensor:
    """Average the text features of the words (M, D) that fit mean image features (G, D) best: (G, D)."""
    best = (means @ words.mT).topk(min(NOUNS, len(words)), dim=-1).indices
    return words[best].mean(dim=1)
