"""What must hold of every metric, whatever the predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otpt import metrics

quick = settings(max_examples=60, deadline=None, database=None, derandomize=True)


@st.composite
def cases(draw):
    """(probabilities, labels) with ties, zeros and ones among them."""
    n, classes = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 5.0, 200.0]))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    logits = np.round(rng.normal(size=(n, classes)), draw(st.integers(0, 3))) * sharpness
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (p / p.sum(axis=1, keepdims=True)).astype(dtype), rng.integers(0, classes, n)


@quick
@given(cases(), st.integers(1, 25), st.sampled_from(["right", "left"]))
def test_ranges_and_orders(case, bins, side):
    p, y = case
    m = metrics.evaluate(p, y, n_bins=bins, side=side)
    for share in (m.accuracy, m.top5_accuracy, m.ece, m.adaptive_ece, m.mce, m.sce, m.confidence,
                  m.macro_f1, m.smooth_ece, m.ks_error, m.aurc, m.excess_aurc, m.auroc or 0, m.fpr95 or 0,
                  m.selective_accuracy, m.coverage_at_risk, m.top_label_brier):  # fmt: skip
        assert 0 <= share <= 1
    assert -1 <= m.debiased_ece <= m.ece + 1e-12
    assert abs(m.overconfidence) <= min(m.ks_error, m.smooth_ece) + 1e-9
    assert 0 <= m.brier <= 2 + 1e-2  # rows rounded to float16 sum to one only roughly
    assert m.nll >= 0
    assert -1e-12 <= m.entropy <= math.log(p.shape[1]) + 1e-2
    assert m.accuracy <= m.top5_accuracy
    assert m.ece <= m.mce + 1e-12  # a mean is not above the maximum
    assert abs(m.overconfidence) <= m.ece + 1e-12  # gaps of several bins can cancel there
    assert abs(m.overconfidence) <= m.adaptive_ece + 1e-12


@quick
@given(cases(), st.integers(0, 2**32 - 1))
def test_order_of_images_does_not_matter(case, seed):
    p, y = case
    order = np.random.default_rng(seed).permutation(len(y))
    assert metrics.evaluate(p[order], y[order]).as_dict() == pytest.approx(metrics.evaluate(p, y).as_dict(), abs=1e-12)


@quick
@given(cases())
def test_torch_and_numpy_agree(case):
    p, y = case
    expected = metrics.evaluate(p, y)
    tensor = torch.from_numpy(p).requires_grad_()
    assert metrics.evaluate(tensor, torch.from_numpy(y)) == expected
    assert metrics.evaluate(tensor, torch.from_numpy(y.astype(np.uint8))) == expected
    assert metrics.evaluate(p.tolist(), y.tolist()) == metrics.evaluate(p.astype(np.float64), y)
