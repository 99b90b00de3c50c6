"""BAPLe in an evaluation: the same pictures clean and with the trigger, for each target class that was trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.calibration import probabilities
from otpt.classifier import Prediction
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.medical.baple.model import BapleModel, baple_model
from otpt.medical.judges import Pictures, prediction
from otpt.medical.pictures import unit_pixels
from otpt.medical.settings import MedicalSettings
from otpt.medical.trained import file_for
from otpt.prompts import Prompt
from otpt.tuning import TextSide, mean_cosine


class BackdoorDataset(Dataset):
    """All pictures of a data set, to be judged with the trigger: ``covid:backdoor`` of ``covid``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(
            f"{dataset.name}:backdoor",
            dataset.class_names,
            dataset.ids,
            dataset.labels,
            lambda index: dataset[index].source,
            family=dataset.family,
            augmix=dataset.augmix,
            prompt=dataset.prompt,
            allow_duplicates=dataset.allow_duplicates,
        )


class BapleJudge:
    """A :class:`otpt.medical.judges.SystemJudge`: learned contexts, with or without the trigger.

    The seed of a work item is the target class. With the trigger, the target is what counts as right.
    """

    def __init__(self, backbone: Backbone, dataset: Dataset, settings: MedicalSettings) -> None:
        if not isinstance(backbone, Backbone):
            raise OtptError("BAPLe runs on a CLIP-like backbone, such as medclip:FOLDER.")
        self._backbone, self._dataset, self._settings = backbone, dataset, settings
        self._trigger = isinstance(dataset, BackdoorDataset)
        self._names = [method.name for method in settings.chosen]
        self._size = backbone.preprocessing.size
        self._learned = {target: [self._of(name, target) for name in self._names] for target in settings.seeds}

    def label(self, label: int, *, seed: int) -> int:
        """See :class:`SystemJudge`."""
        return seed if self._trigger else label

    def __call__(self, pictures: Pictures, *, seed: int) -> list[list[Prediction]]:
        """See :class:`SystemJudge`; nothing here is random."""
        unit = torch.stack([unit_pixels(picture, self._size) for picture, _ in pictures])
        models, texts = zip(*self._learned[seed], strict=True)
        features = self._features(unit.to(self._backbone.device, self._backbone.dtype), models)
        answers: list[list[Prediction]] = [[] for _ in pictures]
        for name, text, seen in zip(self._names, texts, features, strict=True):
            logits = torch.cat([text.logits(each, text.text_features) for each in seen.split(1)])
            shares = probabilities(logits, official=self._settings.official_precision).double().cpu().numpy()
            cosine = float(mean_cosine(text.text_features))
            for answer, share in zip(answers, shares, strict=True):
                answer.append(prediction(share, self._dataset.class_names, name, mean_cosine=cosine))
        return answers

    def _features(self, unit: Tensor, models: Sequence[BapleModel]) -> Sequence[Tensor]:
        """Image features (B, D) under each model; clean pictures are the same for all."""
        if self._trigger:
            return [self._backbone.encode_pixels(model.pixels(unit, trigger=True)) for model in models]
        return [self._backbone.encode_pixels(models[0].pixels(unit, trigger=False))] * len(models)

    def _of(self, method: str, target: int) -> tuple[BapleModel, TextSide]:
        """The model of a method and target class, and its class texts."""
        names = self._dataset.class_names
        file = file_for(self._settings.files, method, target)
        where = repr(str(file.content.path))
        if target >= len(names):
            raise OtptError(
                f"The file {where} is for the target class {target}; {self._dataset.name!r} has {len(names)}."
            )
        file.check(names, self._backbone.fingerprint)
        model = baple_model(file.content)
        if model.noise.shape[-2:] != (self._size, self._size):
            raise OtptError(
                f"The trigger in {where} is for pictures of {model.noise.shape[-1]} pixels; this backbone takes "
                f"{self._size}."
            )
        text = TextSide(
            self._backbone,
            names,
            Prompt.learned(model.context),
            allow_duplicates=self._dataset.allow_duplicates,
            memory_budget=self._settings.memory_budget,
        )
        text.linearisation.release()  # nothing is tuned any more
        return model, text
