"""Several labels per image: an independent probability of each, from a grid of crops.

A softmax over the labels of the whole image divides one among labels that are all there. A crop shows one object, so

    p_c = σ( max_v logit softmax(ℓ_v)_c − log V )

takes the best of the V = 14 crops (the whole image, 2 × 2 crops of 60 % of its sides, 3 × 3 of 45 %), and divides its
odds by the number of crops: the best of many is high by chance too. Models that were trained with a sigmoid (SigLIP)
have a bias of their own, and give σ(ℓ_c) of the whole image. With labelled images, :func:`fit_platt` fits σ(a·z + b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from otpt.errors import OtptError
from otpt.views import CropBox

Floats = npt.NDArray[np.float64]
GRID = ((2, 0.60), (3, 0.45))
"""n × n crops with this fraction of the sides of the image."""
CROPS = 1 + sum(n * n for n, _ in GRID)


def grid_boxes(width: int, height: int) -> list[CropBox]:
    """The boxes of the crops after the whole image, in rows from the top left; they cover the image."""
    found = []
    for n, fraction in GRID:
        h, w = max(1, round(fraction * height)), max(1, round(fraction * width))
        starts = np.linspace(0, 1, n)
        found += [CropBox(round(y * (height - h)), round(x * (width - w)), h, w) for y in starts for x in starts]
    return found


def log_odds(logits: Tensor, *, sigmoid: bool = False) -> Tensor:
    """Log-odds (…, C) of each label, from logits (…, V, C) of the crops; ``sigmoid`` for models trained with one."""
    if sigmoid:
        return logits[..., 0, :]
    p = logits.double().log_softmax(dim=-1).amax(dim=-2).clamp(-60.0, -1e-12)
    return p - torch.log(-torch.expm1(p)) - float(np.log(logits.shape[-2]))


@dataclass(frozen=True)
class Platt:
    """Probabilities σ(slope·z + bias_c) of log-odds z; one bias for all labels, or one for each.

    Attributes:
        slope: a.
        biases: b, of length 1 or C.
        images: number of labelled images.
    """

    slope: float = 1.0
    biases: tuple[float, ...] = (0.0,)
    images: int = 0

    def __call__(self, odds: Any) -> Floats:
        """Probabilities (…, C) of log-odds (…, C)."""
        return np.asarray(expit(self.slope * np.asarray(odds, np.float64) + np.array(self.biases)))


def fit_platt(odds: Any, present: Any, *, per_class: bool = False) -> Platt:
    """Fit σ(a·z + b) to log-odds (N, C) and labels (N, C) by maximum likelihood.

    A normal prior of standard deviation 1 holds the slope near 1 and, with ``per_class``, each bias near the others.
    """
    z, y = np.asarray(odds, np.float64), np.asarray(present, bool)
    if z.ndim != 2 or z.shape != y.shape:
        raise OtptError(f"Log-odds of shape {z.shape} and labels of shape {y.shape} were given; expected (N, C).")
    if not y.any() or y.all():
        raise OtptError("All labels are absent or all are there; expected images with and without some of them.")
    signs, classes = np.where(y, 1.0, -1.0), z.shape[1] if per_class else 0

    def loss(point: Floats) -> tuple[float, Floats]:
        slope, bias, own = point[0], point[1], point[2:] if per_class else 0.0
        margins = signs * (slope * z + bias + own)
        pull = -signs * expit(-margins)
        gradient = np.concatenate([[(pull * z).sum() + slope - 1, pull.sum()], pull.sum(axis=0)[:classes] + own])
        prior = (slope - 1) ** 2 + float(np.square(own).sum())
        return float(np.logaddexp(0, -margins).sum() + prior / 2), gradient

    point = minimize(loss, np.array([1.0, 0.0, *[0.0] * classes]), jac=True, method="L-BFGS-B").x
    biases = (point[1] + point[2:]) if per_class else point[1:2]
    return Platt(float(point[0]), tuple(biases.tolist()), len(z))


def grid_views(image: Image.Image, size: int) -> list[Image.Image]:
    """The crops after the whole image, each resized to ``size`` × ``size``."""
    return [
        image.crop((box.left, box.top, box.left + box.width, box.top + box.height)).resize(
            (size, size), Image.Resampling.BICUBIC
        )
        for box in grid_boxes(image.width, image.height)
    ]


def read_multi_labels(rows: Sequence[Sequence[str]], classes: Sequence[str]) -> npt.NDArray[np.bool_]:
    """(N, C): which classes each row of labels names."""
    places = {name: i for i, name in enumerate(classes)}
    found = np.zeros((len(rows), len(classes)), bool)
    for number, row in enumerate(rows):
        for label in row:
            if label not in places:
                raise OtptError(f"The label {label!r} of image {number + 1} is not one of the {len(classes)} classes.")
            found[number, places[label]] = True
    return found
