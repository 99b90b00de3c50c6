"""PromptSmooth among the methods: prompts tuned on noisy copies; the clean view decides, or the copies vote."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from otpt.backbones import Backbone
from otpt.features.pipeline import EncodedImage
from otpt.methods.batch import Batch
from otpt.methods.kinds import KINDS, Group, Kind, Methods
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Output
from otpt.methods.preparing import coop_context, prompts_of, text_state
from otpt.methods.prompt_tuning import PromptState, mean_cosine, naming_images
from otpt.methods.promptsmooth.certificate import Votes, certify, predict_or_abstain
from otpt.methods.promptsmooth.smoother import Smoother
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.prompts import Prompt, tokenize_prompts
from otpt.registry import CLEAN
from otpt.settings import Settings
from otpt.transfers import to_host

ABSTAINED = "abstained"
"""Flag of a prediction by votes whose class may as well be the second: smoothing gives no answer there."""


class PromptSmoothGroup:
    """Methods of PromptSmooth under one prompt: its own for these classes, the task's words, or CoOp's context.

    See :class:`otpt.methods.kinds.Group`.
    """

    def __init__(
        self, prompt: str, methods: tuple[Method, ...], backbone: Backbone, start: Prompt, settings: Settings
    ) -> None:
        self.prompt, self.methods = prompt, methods
        self._official = settings.official_precision
        self._smoothing = settings.plugins.get("promptsmooth", {}).get("smoothing") or Smoothing()
        self._smoother = Smoother(backbone, self._smoothing)
        self._text: PromptState = text_state(backbone, settings, start, methods)
        self._configs = [method.tuning(settings.family or "fine-grained", settings.dataset) for method in methods]
        asked = {method.aggregate for method in methods}
        self._copies: dict[str, int] = {}  # by what they are for
        if asked & {"votes", "certificate"}:
            self._copies["certificate"] = self._smoothing.samples
        if "certificate" in asked:
            self._copies["selection"] = self._smoothing.selection

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`."""
        found = [self._image(each, name, batch.seed) for each, name in zip(batch.images, batch.names, strict=True)]
        return [list(outputs) for outputs in zip(*found, strict=True)]

    def _image(self, image: EncodedImage, name: str, seed: int) -> list[Output]:
        """The outputs of one image, by method."""
        opened, digest = image.open()
        key = digest if image.task.image_id is None else image.task.image_id
        with naming_images([name], [config for config in self._configs if config is not None]):
            tuned = self._smoother.tune(opened, self._text, self._configs, seed=seed, image_id=key)
        logits = [self._text.logits(tuned.feature[None], texts) for texts in tuned.text_features]
        cosines = [mean_cosine(texts) for texts in tuned.text_features]
        # copies that are encoded once for all methods
        labels = [
            self._smoother.labels(tuned, self._text, count, purpose, seed=seed, image_id=key)
            for purpose, count in self._copies.items()
        ]
        rows = iter(to_host([*logits, *cosines, *tuned.skipped, *labels]))
        logits, cosines, skipped = ([next(rows) for _ in self.methods] for _ in range(3))
        votes = {
            purpose: _votes(own, len(self._text.class_names)) for purpose, own in zip(self._copies, rows, strict=True)
        }
        return [
            self._output(method, logits[i], cosines[i], skipped[i], {purpose: own[i] for purpose, own in votes.items()})
            for i, method in enumerate(self.methods)
        ]

    def _output(
        self, method: Method, logits: Tensor, cosine: Tensor, skipped: Tensor, votes: Mapping[str, Votes]
    ) -> Output:
        """What a method says, of the clean view's logits (1, C) and the votes (C,) of copies by their purpose."""
        numbers = self._smoothing
        flags = (KEPT_INIT,) * bool(skipped)
        extras = {"mean_cosine": float(cosine)}
        if method.aggregate == CLEAN:
            return Output.of_clean(logits, official=self._official, flags=flags, extras=extras)
        own = votes["certificate"]
        distribution = own / numbers.samples
        if method.aggregate == "votes":
            unsure = predict_or_abstain(own, numbers.alpha) is None
            return Output(distribution, int(distribution.argmax()), flags + (ABSTAINED,) * unsure, extras)
        found = certify(votes["selection"], own, sigma=numbers.sigma, alpha=numbers.alpha)
        extras |= {"radius": found.radius, "lower_bound": found.lower_bound}
        index = int(distribution.argmax()) if found.label is None else found.label
        return Output(distribution, index, flags + (ABSTAINED,) * (found.label is None), extras)


def _votes(labels: Tensor, classes: int) -> list[Votes]:
    """How many copies fall to each class: (methods, n) → (C,) of each method."""
    return [np.bincount(row, minlength=classes) for row in labels.numpy()]


def _make(backbone: Backbone, settings: Settings, methods: Methods, cache: object) -> list[Group]:
    found: list[Group] = []
    for prompt in _starts(settings, methods):
        own = tuple(method for method in methods if prompt in _starts(settings, (method,)))
        name = "coop" if prompt.vectors is not None else prompt.name
        found.append(PromptSmoothGroup(name, own, backbone, prompt, settings))
    return found


def _check(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    for prompt in _starts(settings, methods):
        tokenize_prompts(backbone.text, settings.classes, prompt)


def _starts(settings: Settings, methods: Methods) -> list[Prompt]:
    """The prompts that methods start from."""
    found = []
    for method in methods:
        own = prompts_of(settings, method)
        found += [each if isinstance(each, Prompt) else coop_context(settings, methods).prompt() for each in own]
    return list(dict.fromkeys(found))


KINDS["promptsmooth"] = Kind(_make, _check, needs_image=lambda method: True, needs_features=False)
