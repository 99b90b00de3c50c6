"""Several labels per image: independent probabilities from a grid of crops.

A softmax over the whole image splits a probability of one among all labels that are present. A crop often shows one
object, so

    p_c = σ( max_v logit softmax(ℓ_v)_c − log V )

takes the best of V = 14 crops (the whole image, 2 × 2 crops with 60 % of its sides, 3 × 3 with 45 %), and divides its
odds by V, since the maximum over many crops is high by chance. Models trained with a sigmoid (SigLIP) have their own
bias and give σ(ℓ_c) of the whole image. With labelled images, Platt scaling fits σ(a·z + b).

A single label is compared with common nouns: its log-odds are the logit scale times the score ``word-margin`` of
:mod:`otpt.rejection` for the best crop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from scipy.special import expit
from torch import Tensor

from otpt.backbones import Backbone
from otpt.data.own import read_label_sets
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods import Batch, Kind, Methods, Output, register_kind, register_methods, text_state
from otpt.metrics.multi_label import multi_label_table
from otpt.prompts import DEFAULT_PROMPTS, FixedTexts, Prompt
from otpt.rejection import Rejector
from otpt.settings import Settings
from otpt.transfers import to_host
from otpt.views import Preprocessing, normalised
from otpt.views.draws import CropBox
from otpt.views.geometry import planar
from otpt.views.recipe import clean_image

if TYPE_CHECKING:
    from otpt.classifier import Classifier

NAME = "multi-label"
GRID = ((2, 0.60), (3, 0.45))
"""(n, fraction): n × n crops, each with this fraction of the sides of the image."""
CROPS = 1 + sum(n * n for n, _ in GRID)


def grid_boxes(width: int, height: int) -> list[CropBox]:
    """Return the boxes of the grid crops row by row; they cover the image."""
    found = []
    for n, fraction in GRID:
        h, w = max(1, round(fraction * height)), max(1, round(fraction * width))
        starts = np.linspace(0, 1, n)
        found += [CropBox(round(y * (height - h)), round(x * (width - w)), h, w) for y in starts for x in starts]
    return found


def log_odds(logits: Tensor, *, sigmoid: bool = False) -> Tensor:
    """Compute log-odds (…, C) from logits (…, V, C) of the crops; ``sigmoid`` for models trained with it."""
    if sigmoid:
        return logits[..., 0, :]
    p = logits.double().log_softmax(dim=-1).amax(dim=-2).clamp(-60.0, -1e-12)
    return p - torch.log(-torch.expm1(p)) - float(np.log(logits.shape[-2]))


def grid_views(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """Return normalised pixels (14, 3, S, S) of the clean view and the grid crops."""
    size = preprocessing.size
    whole = clean_image(image, preprocessing)
    crops = [
        image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        for top, left, height, width in grid_boxes(image.width, image.height)
    ]
    pixels = torch.from_numpy(np.stack([planar(each) for each in (whole, *crops)]))
    return normalised(pixels.float() / 255, preprocessing.mean, preprocessing.std)


class MultiLabelGroup:
    """The method ``multi-label``, a :class:`otpt.methods.Group`."""

    def __init__(self, methods: Methods, backbone: Backbone, settings: Settings, start: Prompt | FixedTexts) -> None:
        self.prompt, self.methods, self._backbone = start.name, methods, backbone
        self.state = text_state(backbone, settings, start, ())
        self._words: Rejector | None = None
        if len(settings.classes) == 1 and not backbone.logit_bias:
            assert isinstance(start, Prompt)  # other texts are refused
            self._words = Rejector(backbone, settings.classes, start, memory_budget=settings.memory_budget)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.Group`; the probabilities are independent and do not sum to one."""
        backbone = self._backbone
        found = []
        for image in batch.images:
            pixels = grid_views(image.open()[0], backbone.preprocessing).to(backbone.device, backbone.dtype)
            features = backbone.encode_pixels(pixels, chunk=backbone.chunk)
            if self._words is not None:
                odds = -backbone.logit_scale * self._words(features).amin(dim=0, keepdim=True)
            else:
                logits = self.state.logits(features, self.state.text_features)
                odds = log_odds(logits, sigmoid=backbone.logit_bias != 0)
            (odds,) = to_host([odds])
            probabilities = np.asarray(expit(odds.double().numpy()))
            found.append(Output(probabilities, int(probabilities.argmax())))
        return [found for _ in self.methods]


def _make(
    backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None
) -> list[MultiLabelGroup]:
    starts = [settings.texts] if settings.texts else settings.prompts or DEFAULT_PROMPTS
    return [MultiLabelGroup(methods, backbone, settings, start) for start in starts]


register_kind(
    NAME,
    Kind(
        _make,
        needs_image=lambda method: True,
        needs_features=False,
        served=True,
    ),
    only={"init": ("words",), "calibrate": ("none",), "aggregate": ("clean",), "gate": ("none",)},
)
register_methods(
    {
        "parts": {
            NAME: {
                "axis": "adapt",
                "adapt": NAME,
                "summary": "An independent probability of each label, from a grid of 14 crops.",
                "source": "this project (docs/questions.md)",
            }
        }
    }
)


def evaluate_labels(
    classifier: Classifier, images: Iterable[Any], labels: Sequence[Sequence[str]], *, n_bins: int = 15
) -> pd.DataFrame:
    """Predict images and return :func:`otpt.metrics.multi_label.multi_label_table`.

    Args:
        classifier: with ``multi_label`` or a single class.
        images: to predict.
        labels: of each image, as for :meth:`otpt.Classifier.calibrate`.
    """
    present = read_label_sets(labels, classifier.class_names)
    probabilities = np.array([each.probabilities for each in classifier.predict(list(images))])
    if len(probabilities) != len(present):
        raise OtptError(f"{len(probabilities)} images and labels of {len(present)} were given; expected equal numbers.")
    return multi_label_table(probabilities, present, classifier.class_names, n_bins=n_bins)
