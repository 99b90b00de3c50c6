"""BAPLe among the methods: learned contexts on images with or without the trigger, for each target class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.methods.baple.model import BapleModel, baple_model
from otpt.methods.batch import Batch
from otpt.methods.inits.trained import file_for
from otpt.methods.kinds import KINDS, Group, Kind, Methods
from otpt.methods.method import Method
from otpt.methods.output import Output
from otpt.methods.preparing import text_state
from otpt.methods.prompt_tuning import PromptState, mean_cosine
from otpt.prompts import Prompt, tokenize_prompts
from otpt.settings import Settings
from otpt.transfers import to_host
from otpt.views import unit_pixels


class BapleGroup:
    """Methods of BAPLe; see :class:`otpt.methods.kinds.Group`."""

    prompt = "learned context"

    def __init__(self, methods: tuple[Method, ...], backbone: Backbone, settings: Settings) -> None:
        self.methods = methods
        self._backbone, self._settings = backbone, settings
        self._size = backbone.preprocessing.size
        self._learned = [(model, self._text(model)) for model in baple_models(backbone, settings, methods)]

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`; nothing here is random."""
        unit = torch.stack([unit_pixels(image.open()[0], self._size) for image in batch.images])
        models, texts = zip(*self._learned, strict=True)
        features = self._features(unit.to(self._backbone.dtype), models)
        return [self._outputs(text, seen) for text, seen in zip(texts, features, strict=True)]

    def _outputs(self, text: PromptState, features: Tensor) -> list[Output]:
        logits = [text.logits(feature, text.text_features) for feature in features.split(1)]
        cosine, *on_host = to_host([mean_cosine(text.text_features), *logits])
        extras, official = {"mean_cosine": float(cosine)}, self._settings.official_precision
        return [Output.of_clean(own, official=official, extras=extras) for own in on_host]

    def _features(self, unit: Tensor, models: Sequence[BapleModel]) -> Sequence[Tensor]:
        """Image features (B, D) under each model; clean images are the same for all."""
        encode = partial(self._backbone.encode_pixels, chunk=self._backbone.chunk)
        if self._settings.plugins.get("baple", {}).get("backdoor"):
            return [encode(model.pixels(unit, trigger=True)) for model in models]
        return [encode(models[0].pixels(unit, trigger=False))] * len(models)

    def _text(self, model: BapleModel) -> PromptState:
        return text_state(self._backbone, self._settings, Prompt.learned(model.context), ())


def baple_models(backbone: Backbone, settings: Settings, methods: Sequence[Method]) -> list[BapleModel]:
    """The models of the methods for one target class; an error if a file is missing or does not fit."""
    target = settings.plugins.get("baple", {}).get("target")
    if target is None:
        file_for(settings.plugins.get("trained", ()), methods[0].name)  # raises: no file
    return [_model(backbone, settings, method.name, target) for method in methods]


def _model(backbone: Backbone, settings: Settings, method: str, target: int) -> BapleModel:
    file = file_for(settings.plugins.get("trained", ()), method, target)
    where = repr(str(file.content.path))
    if target >= len(settings.classes):
        raise OtptError(
            f"The file {where} is for the target class {target}; there are {len(settings.classes)} classes."
        )
    file.check(settings.classes, backbone.fingerprint)
    model = baple_model(file.content)
    size = backbone.preprocessing.size
    if model.noise.shape[-2:] != (size, size):
        raise OtptError(
            f"The trigger in {where} is for images of {model.noise.shape[-1]} pixels; this backbone takes {size}."
        )
    tokenize_prompts(backbone.text, settings.classes, Prompt.learned(model.context))  # says what does not fit
    return model


def _make(backbone: Backbone, settings: Settings, methods: Methods, cache: object) -> list[Group]:
    return [BapleGroup(methods, backbone, settings)]


def _check(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    baple_models(backbone, settings, methods)


KINDS["baple"] = Kind(
    _make, _check, needs_image=lambda method: True, needs_features=False, prompt=BapleGroup.prompt, trained=True
)
