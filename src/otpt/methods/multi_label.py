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

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from scipy.special import expit
from torch import Tensor

from otpt.methods.batch import Batch
from otpt.methods.method import Method
from otpt.methods.preparation import Setup, System, register_system
from otpt.methods.protocol import MULTI_LABEL, Protocol
from otpt.methods.stages import Output
from otpt.methods.task import Task
from otpt.prompts import Prompt
from otpt.rejection import Rejector
from otpt.transfers import to_host
from otpt.views import Preprocessing, normalised
from otpt.views.draws import CropBox
from otpt.views.geometry import planar
from otpt.views.recipe import clean_image

GRID = ((2, 0.60), (3, 0.45))
"""(n, fraction): n × n crops, each with this fraction of the sides of the image."""


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
    """The method ``multi-label``, a :class:`otpt.methods.preparation.Group`."""

    def __init__(self, setup: Setup) -> None:
        task, backbone = setup.task, setup.backbone
        self.prompt, self.methods = task.texts.name, setup.methods
        self._backbone = backbone
        self.state = setup.state(task.texts, tunes=False, tunable=False)
        self._words: Rejector | None = None
        if len(task.classes) == 1 and not backbone.logit_bias:
            assert isinstance(task.texts, Prompt)  # other texts are refused
            budget = setup.protocol.memory_budget
            self._words = Rejector(backbone, task.classes, task.texts, memory_budget=budget)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.preparation.Group`; the probabilities are independent and do not sum to one."""
        backbone = self._backbone
        outputs = []
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
            outputs.append(Output(probabilities, int(probabilities.argmax())))
        return [outputs for _ in self.methods]


@register_system
class MultiLabel(System):
    """An independent probability of each label, from a grid of 14 crops."""

    name: ClassVar[str] = MULTI_LABEL
    source: ClassVar[str] = "this project (docs/questions.md)"
    served: ClassVar[bool] = True
    only: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "init": ("words",),
        "calibrate": ("none",),
        "aggregate": ("clean",),
        "gate": ("none",),
    }

    def prepare(self, setup: Setup) -> Sequence[MultiLabelGroup]:
        """See :class:`System`."""
        return [MultiLabelGroup(setup)]

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`System`."""
        return task.texts.name
