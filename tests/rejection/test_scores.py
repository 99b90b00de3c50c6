"""Scores of unknown images against literal formulas of numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from otpt import OtptError
from otpt.rejection import SCORES, furthest_first, get_threshold, negative_words

COSINES = np.random.default_rng(0).uniform(-0.2, 0.4, (5, 7))
LOGITS = 100 * COSINES
WORDS = np.random.default_rng(1).uniform(-0.2, 0.4, (5, 21))


def value(name: str, *given: np.ndarray) -> np.ndarray:
    found: np.ndarray = SCORES[name].function(*map(torch.from_numpy, given)).numpy()
    return found


def test_scores_of_cosines_and_probabilities() -> None:
    shares = special.softmax(LOGITS, axis=1)
    np.testing.assert_allclose(value("msp", shares), 1 - shares.max(axis=1))
    np.testing.assert_allclose(value("mcm", COSINES), 1 - special.softmax(COSINES, axis=1).max(axis=1))
    np.testing.assert_allclose(value("entropy", shares), stats.entropy(shares, axis=1) / math.log(7))
    np.testing.assert_allclose(value("energy", LOGITS), -special.logsumexp(LOGITS, axis=1))
    np.testing.assert_allclose(value("max-cosine", COSINES), 1 - COSINES.max(axis=1))
    assert value("entropy", np.array([[1.0, 0.0]])) == 0


def test_negative_labels_literally() -> None:
    """Of 21 words the first 19, nine tenths, in five groups."""
    expected = []
    for classes, words in zip(np.exp(LOGITS), np.exp(100 * WORDS), strict=True):
        parts = []
        for g in range(5):
            own = sum(word for j, word in enumerate(words[:19]) if j % 5 == g)
            parts.append(own / (classes.sum() + own))
        expected.append(sum(parts) / 5)
    np.testing.assert_allclose(value("neg-label", LOGITS, 100 * WORDS), expected)


def test_margin_of_the_ten_best_words() -> None:
    expected = [np.mean(sorted(words)[-10:]) - max(own) for own, words in zip(COSINES, WORDS, strict=True)]
    np.testing.assert_allclose(value("word-margin", COSINES, WORDS), expected)


def test_the_words_come_furthest_first() -> None:
    rng = np.random.default_rng(2)
    words, classes = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rng.normal(size=(2, 40, 8)))
    near = [np.quantile([float(word @ each) for each in classes], 0.95) for word in words]
    expected = sorted(range(40), key=near.__getitem__)
    assert furthest_first(torch.from_numpy(words), torch.from_numpy(classes)).tolist() == expected


def test_the_list_of_words() -> None:
    words = negative_words()
    assert len(words) > 900
    assert len(set(words)) == len(words)
    assert words == sorted(words)
    assert all(word == word.strip() and word for word in words)


def test_unknown_score() -> None:
    with pytest.raises(OtptError, match=r"'energi'.*energy"):
        get_threshold("energi", None)
