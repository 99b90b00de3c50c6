"""The worked example of docs/add-a-method.md runs as a plugin and computes what its docstrings say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.data.images import image

import otpt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-method.md"
METHODS = ("zero-shot", "tpt", "tpt+largest-cosine", "zero-shot+agreement-weighted", "recent-classes")
NAMES = ("cat", "dog", "sea")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("registries")]


def load_example(folder: Path) -> None:
    example = re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    (folder / "mine.py").write_text(example, encoding="utf-8")
    otpt.load_plugin(folder / "mine.py")


def test_worked_examples(tmp_path: Path) -> None:
    load_example(tmp_path)
    clf = otpt.load("pocket", views=8, device="cpu").set_classes(NAMES)
    features = [clf.encode_views(image(seed), image_id=str(seed)) for seed in range(5)]
    answers = clf.classify_features(torch.stack(features), METHODS)
    found = {name: np.stack([each[name].probabilities for each in answers]) for name in METHODS}
    for own, base in (("tpt+largest-cosine", "tpt"), ("zero-shot+agreement-weighted", "zero-shot")):
        assert not np.allclose(found[own], found[base], atol=1e-6), own
    counts = np.ones(len(NAMES))  # recent-classes: ℓ_c − log(n_c / mean n), n the counts of zero-shot's labels so far
    for own, zero_shot in zip(found["recent-classes"], found["zero-shot"], strict=True):
        weighted = zero_shot / (counts / counts.mean())
        np.testing.assert_allclose(own, weighted / weighted.sum(), rtol=0, atol=1e-5)
        counts[zero_shot.argmax()] += 1
