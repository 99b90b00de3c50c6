"""Named classes next to example classes: the literal formula, invariants, and behaviour across a modality gap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.models.pocket import pocket
from scipy.special import log_softmax, logsumexp
from torch import Tensor
from torch.nn import functional as F

from otpt import Classifier
from otpt.data.emoji import emoji_dataset
from otpt.errors import OtptError
from otpt.methods.example_scorers import SCORERS, prototypes
from otpt.methods.mixed_classes import MixedScorer, fit_mixed
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.rejection import negative_words, text_features_of

SCALE = 100.0


def unit(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


WORDS, IMAGES = unit(60, 24, seed=1), unit(7, 24, seed=2)
EXAMPLES, LABELS = unit(4, 24, seed=3), torch.tensor([3, 1, 3, 3])
TEXT_LOGITS = SCALE * IMAGES @ unit(5, 24, seed=4).mT


def literal(image: np.ndarray, examples: np.ndarray, words: np.ndarray, scale: float, bias: float) -> float:
    """The logit of one class, from its examples (n, D), as in the docstring, pair by pair."""
    n = len(examples)
    fits = [np.mean([example @ word for example in examples]) for word in words]
    text = np.mean([words[j] for j in np.argsort(fits)[-10:]], axis=0)
    cosines = [examples[i] @ examples[j] for i in range(n) for j in range(n) if i != j]
    typical = ((n - 1) * np.mean(cosines) + 2 * 0.75) / (n + 1) if n > 1 else 0.75
    similarity = np.mean([image @ example for example in examples])
    return float(scale * image @ text + bias + 4.5 + 0.35 * scale * n / (n + 1) * (similarity - typical))


@pytest.mark.parametrize("kind", list(SCORERS))
def test_literal_formula(kind: str) -> None:
    mixed = fit_mixed(kind, EXAMPLES, LABELS, word_features=WORDS, logit_scale=SCALE, logit_bias=-7.0)
    logits = mixed(IMAGES, TEXT_LOGITS)
    expected = TEXT_LOGITS.numpy().copy()
    for column in (1, 3):
        examples = EXAMPLES[column == LABELS].numpy()
        expected[:, column] = [literal(image, examples, WORDS.numpy(), SCALE, -7.0) for image in IMAGES.numpy()]
    np.testing.assert_allclose(logits.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("kind", list(SCORERS))
@pytest.mark.parametrize("shots", [1, 4])
def test_text_logits(kind: str, shots: int) -> None:
    """Those of named classes are unchanged, those of example classes have no effect."""
    examples, labels = unit(2 * shots, 24, seed=5), torch.tensor([0, 2] * shots)
    mixed = fit_mixed(kind, examples, labels, word_features=WORDS, logit_scale=SCALE)
    without = TEXT_LOGITS.clone()
    without[:, [0, 2]] = torch.nan
    logits = mixed(IMAGES, without)
    assert torch.equal(logits[:, [1, 3, 4]], TEXT_LOGITS[:, [1, 3, 4]])
    assert torch.equal(logits, mixed(IMAGES, TEXT_LOGITS))


@pytest.mark.parametrize("kind", list(SCORERS))
def test_decision_among_example_classes(kind: str) -> None:
    """Many images change the probabilities within the example classes, not their sum."""
    examples, labels = unit(18, 24, seed=6), torch.arange(18) % 3
    mixed = fit_mixed(kind, examples, labels, word_features=WORDS, logit_scale=SCALE)
    assert mixed.fitted is not None
    logits = mixed(IMAGES, TEXT_LOGITS)[:, :3].numpy()
    simple = MixedScorer(mixed.columns, mixed.anchors, mixed.nouns)(IMAGES, TEXT_LOGITS)[:, :3].numpy()
    np.testing.assert_allclose(logsumexp(logits, axis=1), logsumexp(simple, axis=1), atol=1e-9)
    scores = SCORERS[kind](examples, labels, 3, **({} if kind != "gda" else {"shrinkage": mixed.fitted.shrinkage}))
    among = mixed.fitted.text_weight * mixed.nouns(IMAGES) + mixed.fitted.weight * scores(IMAGES)
    np.testing.assert_allclose(log_softmax(logits, axis=1), log_softmax(among.numpy(), axis=1), atol=1e-9)


def test_few_images_or_one_class_are_not_fitted() -> None:
    for count, classes in ((11, 3), (16, 1)):
        labels = torch.arange(count) % classes
        mixed = fit_mixed("gda", unit(count, 24, seed=7), labels, word_features=WORDS, logit_scale=SCALE)
        assert mixed.fitted is None


@pytest.mark.parametrize("kind", list(SCORERS))
def test_views_and_dtype(kind: str) -> None:
    examples, labels = unit(12, 24, seed=8), torch.arange(12) % 2
    mixed = fit_mixed(kind, examples.float(), labels, word_features=WORDS.float(), logit_scale=SCALE)
    assert mixed.anchors.weights.dtype == torch.float64
    expected = mixed(IMAGES, TEXT_LOGITS)
    single = mixed.to(torch.device("cpu"), torch.float32)(IMAGES.float()[:, None], TEXT_LOGITS.float()[:, None])
    assert single.dtype == torch.float32
    assert single.shape == (7, 1, 5)
    torch.testing.assert_close(single[:, 0].double(), expected, atol=1e-3, rtol=0)


def test_order_of_examples_and_gradient() -> None:
    order = torch.tensor([2, 0, 3, 1])
    logits = TEXT_LOGITS.clone().requires_grad_()
    first = fit_mixed("gda", EXAMPLES, LABELS, word_features=WORDS, logit_scale=SCALE)(IMAGES, logits)
    second = fit_mixed("gda", EXAMPLES[order], LABELS[order], word_features=WORDS, logit_scale=SCALE)(IMAGES, logits)
    torch.testing.assert_close(first, second)
    first.sum().backward()
    assert torch.equal(logits.grad, torch.tensor([1.0, 0, 1, 0, 1], dtype=torch.float64).expand(7, 5))


def test_unknown_kind() -> None:
    with pytest.raises(OtptError, match="gdaa"):
        fit_mixed("gdaa", EXAMPLES, LABELS, word_features=WORDS, logit_scale=SCALE)


@pytest.mark.parametrize("shots", [1, 3, 8])
def test_modality_gap(shots: int) -> None:
    """With cosines like CLIP's, cosines of images swallow the named classes; mixed logits keep and find them."""
    generator = torch.Generator().manual_seed(0)
    topics = unit(120, 256, seed=9)
    image_axis, text_axis = torch.eye(256, dtype=torch.float64)[:2]
    texts = F.normalize(0.25 * topics + 0.8 * text_axis, dim=1)

    def pictures(labels: Tensor) -> Tensor:
        noise = 0.6 * torch.randn(len(labels), 256, dtype=torch.float64, generator=generator) / 16
        return F.normalize(0.6 * topics[labels] + 0.8 * image_axis + 0.25 * text_axis + noise, dim=1)

    labels = torch.arange(12).repeat(20)
    images, example_labels = pictures(labels), torch.arange(3).repeat(shots)
    examples, text_logits = pictures(example_labels), SCALE * images @ texts[:12].mT
    naive = text_logits.clone()
    naive[:, :3] = SCALE * prototypes(examples, example_labels, 3)(images)
    mixed = fit_mixed("prototypes", examples, example_labels, word_features=texts[12:], logit_scale=SCALE)
    predicted, hidden = mixed(images, text_logits).argmax(dim=1), labels < 3
    assert (naive.argmax(dim=1) < 3).all()
    assert (predicted == labels)[~hidden].double().mean() > 0.95
    assert (predicted == labels)[hidden].double().mean() > 0.95


def test_emoji() -> None:
    """Four examples in place of the names of three foods out of twelve."""
    clf = Classifier(pocket())
    names = emoji_dataset("emoji/food").class_names[:12]
    parts = []
    for split in ("train", "test"):
        dataset = emoji_dataset("emoji/food", split)
        rows = [i for i, label in enumerate(dataset.labels) if label < 12][:48]
        features = torch.as_tensor(clf.embed([dataset.source(i) for i in rows], workers=0)).double()
        parts += [features, torch.tensor([dataset.labels[i] for i in rows])]
    train, train_labels, test, labels = parts
    words = [word for word in negative_words() if word not in {name.lower() for name in names}]
    texts, nouns = (text_features_of(clf.backbone, each, Prompt(), MEMORY_BUDGET).double() for each in (names, words))
    scale, rows = clf.backbone.logit_scale, train_labels < 3
    text_logits = scale * test @ texts.mT
    mixed = fit_mixed("gda", train[rows], train_labels[rows], word_features=nouns, logit_scale=scale)
    right, named = mixed(test, text_logits).argmax(dim=1) == labels, text_logits.argmax(dim=1) == labels
    assert right[labels < 3].double().mean() >= named[labels < 3].double().mean() - 0.05
    assert right[labels >= 3].double().mean() >= named[labels >= 3].double().mean() - 0.05
