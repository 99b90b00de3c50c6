"""PromptSmooth among the methods: prompts tuned on noisy copies; the clean view decides, or the copies vote."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from otpt.backbones import Backbone
from otpt.features.pipeline import EncodedImage
from otpt.methods.batch import Batch
from otpt.methods.inits.initial_texts import text_side
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Output
from otpt.methods.prompt_tuning import TextSide
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.methods.promptsmooth.certificate import Votes, certify, predict_or_abstain
from otpt.methods.promptsmooth.smoother import Smoother
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.methods.running.calling import naming_images
from otpt.methods.running.groups import GraphlessGroup
from otpt.methods.task import Task
from otpt.prompts import Prompt
from otpt.registry import CLEAN
from otpt.transfers import Steps, join

ABSTAINED = "abstained"
"""Flag of a prediction by votes whose class may as well be the second: smoothing gives no answer there."""


class PromptSmoothGroup(GraphlessGroup):
    """Methods of PromptSmooth under one prompt: its own for these classes, the task's words, or CoOp's context.

    See :class:`otpt.methods.running.groups.Group`.
    """

    def __init__(self, prompt: str, methods: tuple[Method, ...], backbone: Backbone, start: Prompt, task: Task) -> None:
        self.prompt, self.methods = prompt, methods
        self._task = task
        self._smoothing = task.smoothing or Smoothing()
        self._smoother = Smoother(backbone, self._smoothing)
        self._text: TextSide = text_side(backbone, task, start)
        self._configs = [method.tuning(task.family, task.dataset) for method in methods]
        asked = {method.aggregate for method in methods}
        self._copies: dict[str, int] = {}  # by what they are for
        if asked & {"votes", "certificate"}:
            self._copies["certificate"] = self._smoothing.samples
        if "certificate" in asked:
            self._copies["selection"] = self._smoothing.selection

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`."""
        found = yield from join(
            [self._image(each, name, batch.seed) for each, name in zip(batch.images, batch.names, strict=True)]
        )
        return [list(outputs) for outputs in zip(*found, strict=True)]

    def _image(self, image: EncodedImage, name: str, seed: int) -> Steps[list[Output]]:
        """The outputs of one image, by method."""
        opened, digest = image.open()
        key = digest if image.image_id is None else image.image_id
        with naming_images([name], [config for config in self._configs if config is not None]):
            tuned = self._smoother.tune(opened, self._text, self._configs, seed=seed, image_id=key)
        logits = [self._text.logits(tuned.feature[None], texts) for texts in tuned.text_features]
        cosines = [mean_cosine(texts) for texts in tuned.text_features]
        # copies that are encoded once for all methods
        labels = [
            self._smoother.labels(tuned, self._text, count, purpose, seed=seed, image_id=key)
            for purpose, count in self._copies.items()
        ]
        rows = iter((yield [*logits, *cosines, *tuned.skipped, *labels]))
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
            return Output.of_clean(logits, official=self._task.official_precision, flags=flags, extras=extras)
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
