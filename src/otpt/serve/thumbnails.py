"""The views of an image for people to look at: small images, and which of them a step of tuning selects."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from otpt.entropy import select_fraction, view_entropies
from otpt.features.pipeline import EncodedImage
from otpt.methods.predictor import Predictor
from otpt.transfers import to_host
from otpt.views import make_views
from otpt.views.recipe import PreprocessingLike

SIDE = 64
"""Pixels of a thumbnail."""
_FRACTION = 0.1  # of TPT and what is built on it: 6 of 64


def shown_views(predictor: Predictor, image: EncodedImage, preprocessing: PreprocessingLike) -> Mapping[str, Any]:
    """All views as data URLs, the clean one first; the entropies of their zero-shot predictions; those selected."""
    recipe = max(predictor.recipes, key=lambda each: each.n_views)
    logits = predictor.view_logits(image)
    opened, digest = image.open()
    name = digest if image.task.image_id is None else image.task.image_id
    pixels = make_views(opened, recipe, preprocessing, seed=image.task.seed, image_id=name)
    shown = [_data_url(each, preprocessing) for each in pixels]
    if logits is None:
        return {"images": shown, "entropies": None, "selected": []}
    (logits,) = to_host([logits])
    return {
        "images": shown,
        "entropies": view_entropies(logits).tolist(),
        "selected": select_fraction(logits, _FRACTION).tolist(),
    }


def _data_url(view: Any, preprocessing: PreprocessingLike) -> str:
    """A normalised view (3, S, S) as a small JPEG."""
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (preprocessing.mean, preprocessing.std))
    bytes_ = np.clip((view * std + mean) * 255 + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    small = Image.fromarray(bytes_).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
