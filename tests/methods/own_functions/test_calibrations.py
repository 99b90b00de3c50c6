"""Calibrations of one's own against ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.methods.own_functions import EXACT, NAMES, RECIPE, backbone, image, predicted
from torch import Tensor

import otpt
from otpt import Classifier

pytestmark = pytest.mark.slow


def test_a_calibration_sees_the_zero_shot_logits() -> None:
    @otpt.calibrator
    def my_sals(logits: Tensor, zero_shot: Tensor) -> Tensor:
        low, high = zero_shot.min(dim=-1, keepdim=True)[0], zero_shot.max(dim=-1, keepdim=True)[0]
        least, most = logits.min(dim=-1, keepdim=True)[0], logits.max(dim=-1, keepdim=True)[0]
        return (logits - least) / (most - least) * (high - low) + low

    torch.testing.assert_close(predicted("o-tpt+my-sals"), predicted("o-tpt+sals"), **EXACT)


@pytest.mark.equality
def test_a_calibration_sees_one_image_at_a_time() -> None:
    """One that mixes what it is given still says the same of an image in any batch."""

    @otpt.calibrator
    def mixing(logits: Tensor) -> Tensor:
        return logits / logits.abs().mean()

    clf = Classifier(backbone(), "zero-shot+mixing", views=RECIPE).set_classes(NAMES)
    batch = [each.probabilities for each in clf.predict([image(1), image(2)])]
    features = torch.stack([clf.encode_views(image(seed)) for seed in (1, 2)])
    by_features = [each["zero-shot+mixing"].probabilities for each in clf.classify_features(features, [clf.method])]
    for seed, one, other in zip((1, 2), batch, by_features, strict=True):
        np.testing.assert_allclose(one, clf.predict(image(seed)).probabilities, rtol=0, atol=1e-6)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
