"""PromptSmooth among the methods: prompts tuned on noisy copies; the clean view decides, or the copies vote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from PIL import Image

from otpt.backbones import Backbone
from otpt.calibration import probabilities
from otpt.methods.axes import CLEAN
from otpt.methods.batch import Batch
from otpt.methods.calling import naming_images
from otpt.methods.groups import GraphlessGroup
from otpt.methods.inits import coop_context, text_side, tunable
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Output
from otpt.methods.prompt_tuning import TextSide
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.methods.promptsmooth.certificate import Votes, certify, predict_or_abstain
from otpt.methods.promptsmooth.smoother import Smoother, TunedImage
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.methods.task import Task
from otpt.prompts import Prompt

ABSTAINED = "abstained"
"""Flag of a prediction by votes whose class may as well be the second: smoothing gives no answer there."""


def promptsmooth_groups(backbone: Backbone, task: Task, methods: tuple[Method, ...]) -> Iterator[PromptSmoothGroup]:
    """A group for each prompt to start from: PromptSmooth's own for these classes, the task's words, or CoOp's."""
    words = tuple(method for method in methods if method.init == "words")
    prompts = task.prompts if task.noise_prompt is None else (task.noise_prompt,)
    for prompt in prompts if words else ():
        yield PromptSmoothGroup(prompt.name, words, backbone, tunable(backbone, task, prompt), task)
    learned = tuple(method for method in methods if method.init == "coop")
    if learned:
        yield PromptSmoothGroup("coop", learned, backbone, coop_context(task, methods).prompt(), task)


class PromptSmoothGroup(GraphlessGroup):
    """Methods of PromptSmooth under one prompt; see :class:`otpt.methods.groups.Group`."""

    def __init__(self, prompt: str, methods: tuple[Method, ...], backbone: Backbone, start: Prompt, task: Task) -> None:
        self.prompt, self.methods = prompt, methods
        self._task = task
        self._smoothing = task.smoothing or Smoothing()
        self._smoother = Smoother(backbone, self._smoothing)
        self._text: TextSide = text_side(backbone, task, start)
        self._configs = [method.tuning(task.family, task.dataset) for method in methods]

    def predict(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`."""
        found = []
        for image, name in zip(batch.images, batch.names, strict=True):
            opened, digest = image.open()
            key = digest if image.image_id is None else image.image_id
            with naming_images([name], [config for config in self._configs if config is not None]):
                found.append(self._predict(opened, key, batch.seed))
        return [list(outputs) for outputs in zip(*found, strict=True)]

    def _predict(self, image: Image.Image, image_id: str, seed: int) -> list[Output]:
        tuned = self._smoother.tune(image, self._text, self._configs, seed=seed, image_id=image_id)

        @cache
        def votes(purpose: str, count: int) -> Votes:
            """(methods, C), of copies that are encoded once for all methods."""
            return self._smoother.votes(tuned, self._text, count, purpose, seed=seed, image_id=image_id)

        return [self._output(row, method, tuned, votes) for row, method in enumerate(self.methods)]

    def _output(self, row: int, method: Method, tuned: TunedImage, votes: Callable[[str, int], Votes]) -> Output:
        """What the method that is ``row`` of the tuned prompts says."""
        numbers = self._smoothing
        text_features = tuned.text_features[row]
        flags = (KEPT_INIT,) * tuned.skipped[row]
        extras = {"mean_cosine": float(mean_cosine(text_features))}
        if method.aggregate == CLEAN:
            logits = self._text.logits(tuned.feature[None], text_features)
            shares = probabilities(logits, official=self._task.official_precision)[0].double().cpu().numpy()
            return Output(shares, int(shares.argmax()), flags, extras)
        own = votes("certificate", numbers.samples)[row]
        shares = own / numbers.samples
        if method.aggregate == "votes":
            unsure = predict_or_abstain(own, numbers.alpha) is None
            return Output(shares, int(shares.argmax()), flags + (ABSTAINED,) * unsure, extras)
        found = certify(votes("selection", numbers.selection)[row], own, sigma=numbers.sigma, alpha=numbers.alpha)
        extras |= {"radius": found.radius, "lower_bound": found.lower_bound}
        index = int(shares.argmax()) if found.label is None else found.label
        return Output(shares, index, flags + (ABSTAINED,) * (found.label is None), extras)
