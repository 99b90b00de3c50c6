"""Several labels per image: an independent probability of each, from a grid of crops.

A softmax over the labels of the whole image divides one among labels that are all there. A crop shows one object, so

    p_c = σ( max_v logit softmax(ℓ_v)_c − log V )

takes the best of the V = 14 crops (the whole image, 2 × 2 crops of 60 % of its sides, 3 × 3 of 45 %), and divides its
odds by the number of crops: the best of many is high by chance too. Models that were trained with a sigmoid (SigLIP)
have a bias of their own, and give σ(ℓ_c) of the whole image. With labelled images, :func:`fit_platt` fits σ(a·z + b).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import FiniteFloat
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.files import read_json, write_atomically
from otpt.methods import Batch, Kind, Methods, Output, register_kind, register_methods, text_state
from otpt.prompts import Prompt
from otpt.settings import Frozen, Settings
from otpt.transfers import to_host
from otpt.views import Preprocessing, normalised
from otpt.views.draws import CropBox
from otpt.views.geometry import planar
from otpt.views.recipe import clean_image

NAME = "multi-label"
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


class Platt(Frozen):
    """Probabilities σ(slope·z + bias_c) of log-odds z; one bias for all labels, or one for each.

    Attributes:
        slope: a.
        biases: b, of length 1 or C.
        images: number of labelled images.
        classes, fingerprint: class list and model that it was fitted for; empty for any.
    """

    slope: FiniteFloat = 1.0
    biases: tuple[FiniteFloat, ...] = (0.0,)
    images: int = 0
    classes: tuple[str, ...] = ()
    fingerprint: str = ""

    def __call__(self, odds: Any) -> Floats:
        """Probabilities (…, C) of log-odds (…, C)."""
        return np.asarray(expit(self.slope * np.asarray(odds, np.float64) + np.array(self.biases)))

    def write(self, path: str | Path) -> None:
        """Write it as a JSON file, for ``calibration=``."""
        write_atomically(Path(path), self.model_dump_json(indent=1).encode())

    def check(self, classes: Sequence[str], fingerprint: str) -> None:
        """Raise if it was fitted for other classes or another model."""
        if self.classes and (self.classes != tuple(classes) or self.fingerprint != fingerprint):
            what = "another model" if self.classes == tuple(classes) else f"{len(self.classes)} other classes"
            raise OtptError(f"The calibration of several labels was made for {what}; make one for these.")
        if len(self.biases) not in (1, len(classes)):
            raise OtptError(f"The calibration has {len(self.biases)} biases; expected 1 or {len(classes)}.")


def read_platt(path: str | Path) -> Platt:
    """Read a calibration of several labels from its JSON file."""
    content = read_json(Path(path), "calibration of several labels")
    if not isinstance(content, dict) or "slope" not in content:
        raise OtptError(
            f"The file {str(path)!r} is not a calibration of several labels (otpt calibrate --multi-label)."
        )
    return Platt(**content)


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
    return Platt(slope=float(point[0]), biases=tuple(biases.tolist()), images=len(z))


def grid_views(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """Normalised pixels (14, 3, S, S): the clean view, then the crops of the grid."""
    size = preprocessing.size
    whole = clean_image(image, preprocessing)
    crops = [
        image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        for top, left, height, width in grid_boxes(image.width, image.height)
    ]
    pixels = torch.from_numpy(np.stack([planar(each) for each in (whole, *crops)]))
    return normalised(pixels.float() / 255, preprocessing.mean, preprocessing.std)


class MultiLabelGroup:
    """The method for several labels; see :class:`otpt.methods.Group`."""

    def __init__(self, methods: Methods, backbone: Backbone, settings: Settings) -> None:
        prompt = (settings.prompts or (Prompt(),))[0]
        self.prompt, self.methods, self._backbone, self._settings = prompt.name, methods, backbone, settings
        self.state = text_state(backbone, settings, prompt, ())
        self._platt = Platt()
        for given in settings.calibrations:
            self._platt = given if isinstance(given, Platt) else read_platt(given)
            self._platt.check(settings.classes, backbone.fingerprint)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.Group`; the probabilities are independent and do not sum to one."""
        backbone = self._backbone
        found = []
        for image in batch.images:
            pixels = grid_views(image.open()[0], backbone.preprocessing).to(backbone.device, backbone.dtype)
            features = backbone.encode_pixels(pixels, chunk=backbone.chunk)
            logits = self.state.logits(features, self.state.text_features)
            (odds,) = to_host([log_odds(logits, sigmoid=backbone.logit_bias != 0)])
            probabilities = self._platt(odds.numpy())
            found.append(Output(probabilities, int(probabilities.argmax())))
        return [found for _ in self.methods]


register_kind(
    NAME,
    Kind(
        lambda backbone, settings, methods, cache: [MultiLabelGroup(methods, backbone, settings)],
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
