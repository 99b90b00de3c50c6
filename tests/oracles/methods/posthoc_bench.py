"""Images, a small classifier and its literal tuner, for tests of what happens after tuning."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from open_clip import SimpleTokenizer
from oracles.data.images import image
from oracles.methods.literal import USE, LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip
from torch import Tensor

from otpt import Classifier, ViewRecipe
from otpt.backbones import Backbone
from otpt.views import make_views

NAMES = ("cat", "dog", "red panda", "sea", "2012 BMW M3 coupe", "house")
RECIPE = ViewRecipe(n_views=32)
SEEDS = range(4)
SOME_DISAGREE = (9, 10, 11, 24, 25, 26, 27)
"""Images whose confident views agree with the clean one, and images whose do not."""
WEIGHTS: dict[str, dict[str, float]] = {
    "zero-shot": {},
    "tpt": {"entropy": 1.0},
    "o-tpt": {"entropy": 1.0, "orthogonality": 18.0},
}


@cache
def backbone(precision: str = "float64") -> Backbone:
    return tiny_backbone("vit", precision)


@cache
def classifier(precision: str = "float64") -> Classifier:
    return Classifier(backbone(precision), views=RECIPE).set_classes(NAMES)


@cache
def answers(seed: int, methods: tuple[str, ...], precision: str = "float64") -> dict[str, Any]:
    return classifier(precision).compare(image(seed), methods, image_id=str(seed))


@cache
def oracle() -> LiteralTuner:
    return LiteralTuner(tiny_clip("vit", dtype=torch.float64), SimpleTokenizer(), NAMES)


@cache
def literal(seed: int, base: str) -> tuple[Tensor, list[list[float]], list[list[float]]]:
    """Tuned text features, adapted and zero-shot logits of all views, of an image the literal way."""
    made = make_views(image(seed), RECIPE, backbone().preprocessing, seed=0, image_id=str(seed), dtype=np.float64)
    pixels, tuner = torch.from_numpy(made), oracle()
    options: dict[str, Any] = {"weights": WEIGHTS.get(base, {USE: 1.0})}
    if base == "use":
        options["selection"] = "strong"
    context = tuner.predict(pixels, **options)["context"]
    with torch.no_grad():
        features = tuner.model.encode_image(pixels)
        features = features / features.norm(dim=-1, keepdim=True)
        adapted, zero_shot = (tuner.logits(features, each).tolist() for each in (context, tuner.start))
        return tuner.text_features(context), adapted, zero_shot
