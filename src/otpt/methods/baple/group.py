"""BAPLe among the methods: learned contexts on images with or without the trigger, for each target class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.methods.baple.model import BapleModel, baple_model
from otpt.methods.batch import Batch
from otpt.methods.inits.initial_texts import text_side
from otpt.methods.inits.trained import file_for
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.methods.prompt_tuning import TextSide
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.methods.running.groups import GraphlessGroup
from otpt.methods.task import Task
from otpt.prompts import Prompt, tokenize_prompts
from otpt.transfers import Steps, join
from otpt.views import unit_pixels


class BapleGroup(GraphlessGroup):
    """Methods of BAPLe; see :class:`otpt.methods.running.groups.Group`. The seed of a batch is the target class."""

    prompt = "learned context"

    def __init__(self, methods: tuple[Method, ...], backbone: Backbone, task: Task) -> None:
        self.methods = methods
        self._backbone, self._task = backbone, task
        self._size = backbone.preprocessing.size
        self._learned = {
            target: [(model, self._text(model)) for model in models]
            for target, models in baple_models(backbone, task, methods).items()
        }

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`; nothing here is random."""
        unit = torch.stack([unit_pixels(image.open()[0], self._size) for image in batch.images])
        models, texts = zip(*self._learned[batch.seed], strict=True)
        features = self._features(unit.to(self._backbone.dtype), models)
        return (yield from join([self._outputs(text, seen) for text, seen in zip(texts, features, strict=True)]))

    def _outputs(self, text: TextSide, features: Tensor) -> Steps[list[Output]]:
        logits = [text.logits(feature, text.text_features) for feature in features.split(1)]
        cosine, *on_host = yield [mean_cosine(text.text_features), *logits]
        extras, official = {"mean_cosine": float(cosine)}, self._task.official_precision
        return [Output.of_clean(own, official=official, extras=extras) for own in on_host]

    def _features(self, unit: Tensor, models: Sequence[BapleModel]) -> Sequence[Tensor]:
        """Image features (B, D) under each model; clean images are the same for all."""
        if self._task.backdoor:
            return [self._backbone.encode_pixels(model.pixels(unit, trigger=True)) for model in models]
        return [self._backbone.encode_pixels(models[0].pixels(unit, trigger=False))] * len(models)

    def _text(self, model: BapleModel) -> TextSide:
        text = text_side(self._backbone, self._task, Prompt.learned(model.context))
        text.linearisation.release()  # nothing is tuned any more
        return text


def baple_models(backbone: Backbone, task: Task, methods: Sequence[Method]) -> dict[int, list[BapleModel]]:
    """The models of the methods by target class; an error if a file is missing or does not fit."""
    names = {method.name for method in methods}
    targets = sorted({file.target for file in task.trained if file.method in names and file.target is not None})
    if not targets:
        file_for(task.trained, methods[0].name)  # says what is missing
    return {target: [_model(backbone, task, method.name, target) for method in methods] for target in targets}


def _model(backbone: Backbone, task: Task, method: str, target: int) -> BapleModel:
    file = file_for(task.trained, method, target)
    where = repr(str(file.content.path))
    if target >= len(task.class_names):
        raise OtptError(
            f"The file {where} is for the target class {target}; there are {len(task.class_names)} classes."
        )
    file.check(task.class_names, backbone.fingerprint)
    model = baple_model(file.content)
    size = backbone.preprocessing.size
    if model.noise.shape[-2:] != (size, size):
        raise OtptError(
            f"The trigger in {where} is for images of {model.noise.shape[-1]} pixels; this backbone takes {size}."
        )
    tokenize_prompts(backbone.text, task.class_names, Prompt.learned(model.context))  # says what does not fit
    return model
