"""The training split of the emoji bench: the same classes, other compositions."""

from __future__ import annotations

from collections import Counter

import pytest

from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.images import image_digest

pytestmark = pytest.mark.slow

pytest.importorskip("resvg_py")


def test_training_images_are_not_the_test_images() -> None:
    train, test = load_dataset("emoji/food", split="train"), load_dataset("emoji/food")
    assert train.class_names == test.class_names
    assert set(Counter(train.labels).values()) == {16}
    assert not set(train.ids) & set(test.ids)
    assert train.fingerprint != test.fingerprint
    digests = [
        {image_digest(data[i].source) for i, label in enumerate(data.labels) if label == 3} for data in (train, test)
    ]
    assert len(digests[0]) == 16
    assert not digests[0] & digests[1]


def test_other_splits() -> None:
    with pytest.raises(OtptError, match=r"emoji/food has no split 'val'; expected test or train\."):
        load_dataset("emoji/food", split="val")
