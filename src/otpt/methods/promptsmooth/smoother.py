"""A prompt for each image, tuned on its noisy copies; votes of further copies under that prompt.

The step is TPT's (AdamW, one step from an empty state, the prompt reset for each image) with other views: all of
``copies`` Gaussian copies, none left out, the clean view not among them. So the engine of
``otpt.methods.prompt_tuning`` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.methods.prompt_tuning import PromptState, TuningConfig, tune
from otpt.methods.promptsmooth.noise import noisy_copies
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.views import ViewRecipe, make_views


@dataclass(frozen=True)
class TunedImage:
    """An image and the prompts made for it.

    Attributes:
        clean: (3, S, S) normalised pixels; feature: (D,) of them.
        text_features: (C, D) under each config's prompt.
        skipped: by config, (), whether its gradient was not finite and the initial prompt was kept.
    """

    clean: Tensor
    feature: Tensor
    text_features: tuple[Tensor, ...]
    skipped: tuple[Tensor, ...]


class Smoother:
    """PromptSmooth on a backbone."""

    def __init__(self, backbone: Backbone, smoothing: Smoothing) -> None:
        self._backbone = backbone
        self._smoothing = smoothing

    def tune(
        self, image: Image.Image, text: PromptState, configs: Sequence[TuningConfig | None], *, seed: int, image_id: str
    ) -> TunedImage:
        """The prompts of an image, by each config; None keeps the initial prompt."""
        backbone, smoothing = self._backbone, self._smoothing
        dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
        views = make_views(
            image, ViewRecipe(n_views=1), backbone.preprocessing, seed=seed, image_id=image_id, dtype=dtype
        )
        clean = torch.from_numpy(views[0])
        texts: dict[TuningConfig | None, tuple[Tensor, Tensor]] = {None: (text.text_features, torch.tensor(False))}
        tuning = [config for config in configs if config is not None]
        if tuning:
            copies = torch.cat(list(self._features(clean, smoothing.copies, "tuning", seed, image_id)))
            for config, tuned in tune(text, copies[None], tuning).items():
                texts[config] = tuned.text_features[0], tuned.skipped[0]
        features, skipped = zip(*(texts[config] for config in configs), strict=True)
        return TunedImage(clean, backbone.encode_pixels(clean[None], chunk=backbone.chunk)[0], features, skipped)

    def labels(
        self, tuned: TunedImage, text: PromptState, count: int, purpose: str, *, seed: int, image_id: str
    ) -> Tensor:
        """The classes of ``count`` new copies under each config's prompt: (configs, count)."""
        found = [
            torch.stack([text.logits(features, own).argmax(dim=1) for own in tuned.text_features])
            for features in self._features(tuned.clean, count, purpose, seed, image_id)
        ]
        return torch.cat(found, dim=1)

    def _features(self, clean: Tensor, count: int, purpose: str, seed: int, image_id: str) -> Iterator[Tensor]:
        copies = noisy_copies(
            clean,
            self._backbone.preprocessing,
            self._smoothing.sigma,
            count,
            seed=seed,
            image_id=image_id,
            purpose=purpose,
            batch=self._smoothing.batch,
        )
        return (self._backbone.encode_pixels(batch, chunk=self._backbone.chunk) for batch in copies)
