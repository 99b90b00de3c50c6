"""Image features for other programs: of the clean view, or the mean over views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.inputs import image_inputs
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.images import LIMITS, UrlLimits
from otpt.views import ViewRecipe


def embed(
    backbone: Backbone,
    images: Iterable[Any],
    views: int | ViewRecipe = 1,
    *,
    seed: int = 0,
    workers: int | None = None,
    urls: UrlLimits | None = LIMITS,
) -> Iterator[npt.NDArray[np.floating] | OtptError]:
    """Unit features (D,) of images, in order and lazily; a bad image yields its error in its place.

    Of several views, the mean of their unit features is normalised.
    """
    recipe = views if isinstance(views, ViewRecipe) else ViewRecipe(n_views=views)
    tasks = (
        ImageTask(each.shown, each.source, [recipe], seed, each.image_id, urls=urls) for each in image_inputs(images)
    )
    for _, found in FeaturePipeline(backbone, threads=workers)(tasks):
        if isinstance(found, OtptError):
            yield found
            continue
        features = found.features[recipe.kind]
        mean = features[0] if len(features) == 1 else features.mean(dim=0)
        yield (mean / mean.norm() if len(features) > 1 else mean).cpu().numpy()
