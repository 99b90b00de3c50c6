"""Images that are predicted together: features of their views, and pixels on request."""

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
    """B images, each with the features of all kinds of views that are needed; ``seed`` is that of their views."""

    images: Sequence[EncodedImage]
    seed: int

    def __len__(self) -> int:
        return len(self.images)

    def features(self, recipe: ViewRecipe) -> Tensor:
        """(B, V, D) unit features of the views of a recipe, the clean view first."""
        return torch.stack([image.features[recipe.kind][: recipe.n_views] for image in self.images])

    def clean_features(self) -> Tensor:
        """(B, D) unit features of the clean views, which are the same for all kinds of views."""
        return torch.stack([next(iter(image.features.values()))[0] for image in self.images])

    def pixels(self, recipe: ViewRecipe, backbone: Backbone) -> Tensor:
        """(B, V, 3, S, S) normalised pixels, for prompts that reach into the image tower."""
        dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
        made = []
        for encoded in self.images:
            image, digest = encoded.open()
            name = digest if encoded.task.image_id is None else encoded.task.image_id
            views = make_views(image, recipe, backbone.preprocessing, seed=self.seed, image_id=name, dtype=dtype)
            made.append(torch.from_numpy(views))
        return torch.stack(made)

    def part(self, indices: Sequence[int]) -> Batch:
        """Some of the images."""
        return self if len(indices) == len(self) else Batch([self.images[i] for i in indices], self.seed)

    @property
    def names(self) -> list[str]:
        """What messages call the images."""
        return [str(image.task.key) for image in self.images]
