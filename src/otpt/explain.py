"""Heat maps: which part of an image supports a label, without gradients, for any backbone.

Small random crops are classified by zero-shot, or by the example images of the classes. A place is hot where the crops
that contain it give the label higher log-odds than the others do:

    h(x) = Σ_i w_i·(z_i − z̄)·[x in crop i] / (Σ_i w_i·[x in crop i] + 0.3·mean coverage),    w_i = 1/area of crop i

with z_i the log-odds of the label in crop i and z̄ their weighted mean. The constant in the denominator shrinks places
that few crops contain towards 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError, unknown
from otpt.images import ImageSource, UrlLimits
from otpt.methods import Method, Predictor, Task
from otpt.methods import Protocol as MethodProtocol
from otpt.prediction import Prediction
from otpt.rejection import Rejector
from otpt.video import open_still
from otpt.views import ViewRecipe, make_views
from otpt.views.draws import CropBox, draw_view

Floats = npt.NDArray[np.float64]

AREA = (0.05, 0.30)
"""Smallest and largest crop, as fractions of the image."""
CROPS = 64
SHRINKAGE = 0.3
SIDE = 256
"""Largest side of a map."""
_LEAST = 1e-4  # probabilities are clipped to [1e-4, 1 - 1e-4]
_MOST_OPAQUE = 0.8


class ExplainableClassifier(Protocol):
    """What :func:`explain` uses of a :class:`otpt.Classifier`."""

    @property
    def backbone(self) -> Backbone: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def method(self) -> Method: ...

    @property
    def task(self) -> Task: ...

    @property
    def protocol(self) -> MethodProtocol: ...

    @property
    def urls(self) -> UrlLimits | None: ...

    def predict(self, image: Image.Image, /) -> Prediction: ...

    def classify_features(
        self, views: Tensor, methods: Sequence[str | Method], /
    ) -> Sequence[Mapping[str, Prediction]]: ...


@dataclass(frozen=True, eq=False, repr=False)
class HeatMap:
    """Evidence for a label at each place of an image.

    Attributes:
        values: (H, W), at most 256 on the longer side; above 0 where crops raise the log-odds of the label.
        label: name of the class.
        confidence: probability of the class by the classifier's method; the map of an improbable label says little.
        image: the explained image.

    Example:
        >>> HeatMap(np.array([[-1.0, 2.0]]), "cat", 0.8, Image.new("RGB", (64, 32))).peak
        (48, 16)
    """

    values: Floats
    label: str
    confidence: float
    image: Image.Image

    def __repr__(self) -> str:
        size = f"{self.image.width}×{self.image.height}"
        return f"HeatMap(label={self.label!r}, confidence={self.confidence:.2f}, image: {size}, peak={self.peak})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeatMap):
            return NotImplemented
        same_label = (self.label, self.confidence) == (other.label, other.confidence)
        return same_label and np.array_equal(self.values, other.values) and self.image == other.image

    def __hash__(self) -> int:
        return hash((self.label, self.confidence, self.values.tobytes()))

    @property
    def peak(self) -> tuple[int, int]:
        """Position (x, y) of the maximum in pixels of the image."""
        row, column = np.unravel_index(int(self.values.argmax()), self.values.shape)
        x, y = (column + 0.5) / self.values.shape[1], (row + 0.5) / self.values.shape[0]
        return int(x * self.image.width), int(y * self.image.height)

    def layer(self) -> Image.Image:
        """Return the map as a transparent layer: red for the label, blue against it."""
        scale = float(np.abs(self.values).max()) or 1.0
        colours = np.where(self.values[..., None] > 0, (180, 4, 38), (59, 76, 192))
        opacity = 255 * _MOST_OPAQUE * np.abs(self.values[..., None]) / scale
        return Image.fromarray(np.concatenate([colours, opacity], axis=-1).astype(np.uint8), "RGBA")

    def overlay(self) -> Image.Image:
        """Return the image under :meth:`layer`."""
        layer = self.layer().resize(self.image.size, Image.Resampling.BICUBIC)
        return Image.alpha_composite(self.image.convert("RGBA"), layer).convert("RGB")

    def save(self, path: str | Path) -> None:
        """Write the overlay as an image file."""
        try:
            self.overlay().save(path)
        except (OSError, ValueError) as error:
            raise OtptError(f"The heat map cannot be written to {str(path)!r}: {error}.") from None

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.overlay().save(data, "png")
        return data.getvalue()


def explain(
    classifier: ExplainableClassifier,
    image: ImageSource,
    label: str | None = None,
    *,
    crops: int = CROPS,
    seed: int = 0,
) -> HeatMap:
    """Return the heat map of a label, by default of the predicted one.

    Args:
        classifier: a classifier whose classes are set.
        image: image in any form that :func:`otpt.images.open_image` takes.
        label: name of one of the classes.
        crops: number of crops, each encoded once; more give a smoother map.
        seed: random seed of the crops.
    """
    if isinstance(crops, bool) or not isinstance(crops, int) or crops < 2:
        raise OtptError(f"The number of crops is {crops!r}; expected an integer of at least 2.")
    names = classifier.class_names
    if label is not None and label not in names:
        raise unknown("label", label, names)
    opened = open_still(image, classifier.urls, upright=classifier.protocol.upright)
    prediction = classifier.predict(opened)
    names = prediction.class_names  # those of a group, if the classifier answers within it
    if label is not None and label not in names:
        raise unknown("label within the group", label, names)
    index = prediction.index if label is None else names.index(label)

    if len(names) == 1:
        probabilities = _presence(classifier.backbone, names)
    else:
        probabilities = _class_probabilities(classifier, index)
    values = crop_map(classifier.backbone, opened, probabilities, crops=crops, seed=seed)
    return HeatMap(values, names[index], float(prediction.probabilities[index]), opened)


def _presence(backbone: Backbone, names: tuple[str, ...]) -> Callable[[Tensor], Floats]:
    """Return a function from features (N, D) to the probabilities (N,) that a single class is present."""
    words = Rejector(backbone, names)  # a softmax over one class is 1

    def probabilities(features: Tensor) -> Floats:
        return torch.sigmoid(-backbone.logit_scale * words(features)).double().cpu().numpy()

    return probabilities


def _class_probabilities(classifier: ExplainableClassifier, index: int) -> Callable[[Tensor], Floats]:
    """Return a function from features (N, D) to the probabilities (N,) of a class."""
    if classifier.task.multi_label:
        return _probabilities_among_labels(classifier, index)
    method = classifier.method.init if classifier.task.examples is not None else "zero-shot"

    def probabilities(features: Tensor) -> Floats:
        predictions = classifier.classify_features(features[:, None], [method])
        return np.array([of_crop[method].probabilities[index] for of_crop in predictions])

    return probabilities


def _probabilities_among_labels(classifier: ExplainableClassifier, index: int) -> Callable[[Tensor], Floats]:
    """Return a function from features (N, D) to the zero-shot probabilities (N,) of a label among all labels."""
    task = classifier.task.replace(multi_label=False)
    zero_shot = Predictor(classifier.backbone, [task], classifier.protocol.replace(methods=("zero-shot",)))

    def probabilities(features: Tensor) -> Floats:
        return np.array([output.probabilities[index] for (output,) in zero_shot.of_features(features[:, None])])

    return probabilities


def crop_map(
    backbone: Backbone,
    image: Image.Image,
    probabilities: Callable[[Tensor], Floats],
    *,
    crops: int = CROPS,
    seed: int = 0,
) -> Floats:
    """Return the map (H, W) of an image.

    Args:
        backbone: model that encodes the crops.
        image: RGB image.
        probabilities: function from the features (N, D) of crops to the probabilities (N,) of the label.
        crops: number of crops.
        seed: random seed of the crops.
    """
    key = "explain"
    recipe = ViewRecipe(n_views=crops + 1, augmix=False, crop_scale=AREA, flip=0.0)
    views = make_views(image, recipe, backbone.preprocessing, seed=seed, image_id=key, first=1)
    pixels = torch.from_numpy(views).to(device=backbone.device, dtype=backbone.dtype)
    features = backbone.encode_pixels(pixels, chunk=backbone.chunk)
    clipped = np.clip(probabilities(features), _LEAST, 1 - _LEAST)
    boxes = [
        draw_view(
            seed,
            key,
            view,
            width=image.width,
            height=image.height,
            crop_scale=recipe.crop_scale,
            crop_ratio=recipe.crop_ratio,
            flip=recipe.flip,
        ).crop
        for view in range(1, recipe.n_views)
    ]
    return heat_map(np.log(clipped / (1 - clipped)), boxes, image.width, image.height)


def heat_map(scores: Floats, boxes: list[CropBox], width: int, height: int) -> Floats:
    """Return the map (H, W) from the scores (N,) of crops of an image; see the formula above."""
    scale = min(1.0, SIDE / max(width, height))
    shape = max(1, round(height * scale)), max(1, round(width * scale))
    weights = 1.0 / np.array([box.height * box.width for box in boxes], np.float64)
    weights /= weights.mean()
    centred = scores - (weights * scores).sum() / weights.sum()
    total, coverage = np.zeros(shape), np.zeros(shape)
    for score, weight, box in zip(centred, weights, boxes, strict=True):
        top, bottom = (round(edge / height * shape[0]) for edge in (box.top, box.top + box.height))
        left, right = (round(edge / width * shape[1]) for edge in (box.left, box.left + box.width))
        total[top:bottom, left:right] += weight * score
        coverage[top:bottom, left:right] += weight
    return np.asarray(total / (coverage + SHRINKAGE * coverage.mean()))
