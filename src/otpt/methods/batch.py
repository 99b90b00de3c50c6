"""Batches of encoded images, as the prediction path sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.features.pipeline import EncodedImage
from otpt.views import ViewRecipe, make_views


@dataclass(frozen=True)
class Batch:
    """Batch of B images with the features of all required views; ``seed`` determines the views."""

    images: Sequence[EncodedImage[object]]
    seed: int

    def features(self, recipe: ViewRecipe) -> Tensor:
        """Return the unit features (B, V, D) of the views of a recipe, the clean view first."""
        return torch.stack([image.features[recipe.kind][: recipe.n_views] for image in self.images])

    def clean_features(self) -> Tensor:
        """Return the unit features (B, D) of the clean views."""
        return torch.stack([next(iter(image.features.values()))[0] for image in self.images])

    def pixels(self, recipe: ViewRecipe, backbone: Backbone) -> Tensor:
        """Return normalised pixels (B, V, 3, S, S) for prompts in the image tower."""
        dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
        made = []
        for encoded in self.images:
            image, digest = encoded.open()
            name = digest if encoded.task.image_id is None else encoded.task.image_id
            views = make_views(image, recipe, backbone.preprocessing, seed=self.seed, image_id=name, dtype=dtype)
            made.append(torch.from_numpy(views))
        return torch.stack(made)
