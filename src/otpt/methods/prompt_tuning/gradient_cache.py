"""Gradients at the initial context on disk: a further method on cached features needs no backward pass.

What a method with one step adds to the features is a forward pass of the text features under its tuned context, if the
gradient of its view objective at the initial context is known. It depends on the features of the views and on the text
side alone. The key is made of these themselves and not of where they came from, so an entry is the gradient of exactly
these numbers, or it is not found.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from otpt._version import __version__
from otpt.features.cache import FeatureCache
from otpt.methods.prompt_tuning import TextSide
from otpt.methods.prompt_tuning.gradients import ViewObjective
from otpt.registry import OBJECTIVES
from otpt.transfers import to_device


class CachedGradients:
    """The gradients of one image under one text side; a :class:`otpt.methods.prompt_tuning.gradients.GradientStore`.

    Args:
        views: (V, D), the image's features, on the host.
    """

    on_host = True

    def __init__(self, cache: FeatureCache, text: TextSide, views: Tensor) -> None:
        self._cache, self._text, self._views = cache, text, views

    def get(self, objective: ViewObjective) -> Tensor | None:
        """The gradient (n, W) if the cache has it; an entry of another shape or type is ignored."""
        found = self._cache.get_gradient(self._key(objective))
        if found is None:
            return None
        init = self._text.init
        gradient = torch.from_numpy(np.array(found))
        same = (gradient.shape, gradient.dtype) == (init.shape, init.dtype)
        return to_device(gradient, init.device) if same else None

    def put(self, objective: ViewObjective, gradient: Tensor) -> None:
        """Keep it, as it was computed; on the host."""
        self._cache.put_gradient(self._key(objective), gradient.numpy())

    def _key(self, objective: ViewObjective) -> str:
        facts = [*objective.facts, self._image, self._text.fingerprint, __version__, torch.__version__]
        if own := OBJECTIVES[objective.name].digest:  # a user may change a function and keep its name
            facts.append(own)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def _image(self) -> str:
        views = self._views
        digest = hashlib.sha256(f"{views.dtype} {tuple(views.shape)} ".encode())
        digest.update(views.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()
