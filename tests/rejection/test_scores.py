"""Scores of unknown images against literal formulas of numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from otpt import OtptError
from otpt.rejection import DEFAULT_SCORE, SCORES, get_score
from otpt.rejection.neg_label import furthest, neg_label, negative_words

COSINES = np.random.default_rng(0).uniform(-0.2, 0.4, (5, 7))
LOGITS = 100 * COSINES
NEGATIVES = 100 * np.random.default_rng(1).uniform(-0.2, 0.4, (5, 11))


def value(name: str, *given: np.ndarray) -> np.ndarray:
    found: np.ndarray = get_score(name).function(*map(torch.from_numpy, given)).numpy()
    return found


def test_scores_of_cosines_and_probabilities() -> None:
    shares = special.softmax(LOGITS, axis=1)
    np.testing.assert_allclose(value("msp", shares), 1 - shares.max(axis=1))
    np.testing.assert_allclose(value("mcm", COSINES), 1 - special.softmax(COSINES, axis=1).max(axis=1))
    np.testing.assert_allclose(value("entropy", shares), stats.entropy(shares, axis=1) / math.log(7))
    np.testing.assert_allclose(value("energy", LOGITS), -special.logsumexp(LOGITS, axis=1))
    np.testing.assert_allclose(value("max-cosine", COSINES), 1 - COSINES.max(axis=1))
    assert value("entropy", np.array([[1.0, 0.0]])) == 0


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_negative_labels_literally(groups: int) -> None:
    expected = []
    for classes, words in zip(np.exp(LOGITS), np.exp(NEGATIVES), strict=True):
        parts = []
        for g in range(groups):
            own = sum(word for j, word in enumerate(words) if j % groups == g)
            parts.append(own / (classes.sum() + own))
        expected.append(sum(parts) / groups)
    found = neg_label(torch.from_numpy(LOGITS), torch.from_numpy(NEGATIVES), groups)
    np.testing.assert_allclose(found.numpy(), expected)


def test_the_words_that_are_kept_are_the_furthest() -> None:
    rng = np.random.default_rng(2)
    words, classes = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rng.normal(size=(2, 40, 8)))
    near = [np.quantile([float(word @ each) for each in classes], 0.95) for word in words]
    expected = sorted(range(40), key=near.__getitem__)[:10]
    assert furthest(torch.from_numpy(words), torch.from_numpy(classes), 0.25).tolist() == expected


def test_the_list_of_words() -> None:
    words = negative_words()
    assert len(words) > 900
    assert len(set(words)) == len(words)
    assert words == sorted(words)
    assert all(word == word.strip() and word for word in words)


def test_thresholds_have_a_meaning() -> None:
    assert all(bool(score.meaning) == (score.threshold is not None) for score in SCORES.values())
    assert SCORES[DEFAULT_SCORE].threshold is not None
    with pytest.raises(OtptError, match=r"Unknown score of unknown images 'energi'. Did you mean: energy"):
        get_score("energi")
