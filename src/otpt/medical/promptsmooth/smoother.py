"""A prompt for each picture, tuned on its noisy copies; votes of further copies under that prompt.

The step is TPT's (AdamW, one step from an empty state, the prompt reset for each picture) with other views: all of
``copies`` Gaussian copies, none left out, the clean view not among them. So the engine of ``otpt.tuning`` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.medical.promptsmooth.certificate import Certificate, Votes, certify
from otpt.medical.promptsmooth.noise import noisy_copies
from otpt.medical.promptsmooth.smoothing import Smoothing
from otpt.tuning import TextSide, TuningPlan, tune
from otpt.views import ViewRecipe, make_views


@dataclass(frozen=True)
class TunedPicture:
    """A picture and the prompts made for it.

    Attributes:
        clean: (3, S, S) normalised pixels; feature: (D,) of them.
        text_features: (C, D) under each plan's prompt.
        skipped: by plan, whether its gradient was not finite and the start prompt was kept.
    """

    clean: Tensor
    feature: Tensor
    text_features: tuple[Tensor, ...]
    skipped: tuple[bool, ...]


class Smoother:
    """PromptSmooth on a backbone."""

    def __init__(self, backbone: Backbone, smoothing: Smoothing) -> None:
        self._backbone = backbone
        self._smoothing = smoothing

    def tune(
        self, picture: Image.Image, text: TextSide, plans: Sequence[TuningPlan | None], *, seed: int, picture_id: str
    ) -> TunedPicture:
        """The prompts of a picture, by each plan; None keeps the start prompt."""
        backbone, smoothing = self._backbone, self._smoothing
        clean = torch.from_numpy(
            make_views(picture, ViewRecipe(n_views=1), backbone.preprocessing, seed=seed, picture_id=picture_id)[0]
        )
        texts: dict[TuningPlan | None, tuple[Tensor, bool]] = {None: (text.text_features, False)}
        tuning = [plan for plan in plans if plan is not None]
        if tuning:
            copies = torch.cat(list(self._features(clean, smoothing.copies, "tuning", seed, picture_id)))
            for plan, tuned in tune(text, copies[None], tuning).items():
                texts[plan] = text.encoder.encode(tuned.contexts)[0], bool(tuned.skipped[0])
        features, skipped = zip(*(texts[plan] for plan in plans), strict=True)
        return TunedPicture(clean, backbone.encode_pixels(clean[None])[0], features, skipped)

    def votes(
        self, tuned: TunedPicture, text: TextSide, count: int, purpose: str, *, seed: int, picture_id: str
    ) -> Votes:
        """How many of ``count`` new copies fall to each class under each plan's prompt: (plans, C)."""
        classes = len(text.class_names)
        found = np.zeros((len(tuned.text_features), classes), np.int64)
        for features in self._features(tuned.clean, count, purpose, seed, picture_id):
            for row, text_features in enumerate(tuned.text_features):
                labels = text.logits(features, text_features).argmax(dim=1).cpu().numpy()
                found[row] += np.bincount(labels, minlength=classes)
        return found

    def certify(self, tuned: TunedPicture, text: TextSide, *, seed: int, picture_id: str) -> list[Certificate]:
        """A certificate under each plan's prompt: class by N₀ votes, bound by N others."""
        smoothing = self._smoothing
        first = self.votes(tuned, text, smoothing.selection, "selection", seed=seed, picture_id=picture_id)
        votes = self.votes(tuned, text, smoothing.samples, "certificate", seed=seed, picture_id=picture_id)
        return [certify(a, b, sigma=smoothing.sigma, alpha=smoothing.alpha) for a, b in zip(first, votes, strict=True)]

    def _features(self, clean: Tensor, count: int, purpose: str, seed: int, picture_id: str) -> Iterator[Tensor]:
        copies = noisy_copies(
            clean,
            self._backbone.preprocessing,
            self._smoothing.sigma,
            count,
            seed=seed,
            picture_id=picture_id,
            purpose=purpose,
            batch=self._smoothing.batch,
        )
        return (self._backbone.encode_pixels(batch) for batch in copies)
