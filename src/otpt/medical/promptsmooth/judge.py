"""PromptSmooth in an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from otpt.backbones import Backbone
from otpt.calibration import probabilities
from otpt.classifier import KEPT_START, Prediction
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.medical.judges import Pictures, prediction
from otpt.medical.promptsmooth.certificate import predict_or_abstain
from otpt.medical.promptsmooth.smoother import Smoother
from otpt.medical.settings import MedicalSettings
from otpt.prompts import Prompt
from otpt.threads import in_threads
from otpt.tuning import TextSide, TuningPlan, mean_cosine

ABSTAINED = "abstained"
"""Flag of a prediction by votes whose class may as well be the second: smoothing gives no answer there."""


class PromptSmoothJudge:
    """A :class:`otpt.medical.judges.SystemJudge`: prompts tuned on noisy copies, confidence as the settings say."""

    def __init__(self, backbone: Backbone, dataset: Dataset, settings: MedicalSettings) -> None:
        if not isinstance(backbone, Backbone):
            raise OtptError("PromptSmooth runs on a CLIP-like backbone, such as hf:vinid/plip.")
        self._settings, self._names = settings, dataset.class_names
        self._smoother = Smoother(backbone, settings.smoothing)
        self._plans = plans_for(settings, dataset)
        self._texts = [text_side(backbone, dataset, prompt, settings) for prompt in settings.prompts_for(dataset)]

    def __call__(self, pictures: Pictures, *, seed: int) -> list[list[Prediction]]:
        """See :class:`SystemJudge`."""

        def one(picture: tuple[Image.Image, str]) -> list[Prediction]:
            return [answer for text in self._texts for answer in self._judge(*picture, text, seed)]

        return in_threads(one, pictures)

    def label(self, label: int, *, seed: int) -> int:
        """See :class:`SystemJudge`."""
        return label

    def _judge(self, picture: Image.Image, digest: str, text: TextSide, seed: int) -> list[Prediction]:
        tuned = self._smoother.tune(picture, text, self._plans, seed=seed, picture_id=digest)
        logits = [text.logits(tuned.feature[None], each) for each in tuned.text_features]
        official = self._settings.official_precision
        shares = [probabilities(each, official=official)[0].double().cpu().numpy() for each in logits]
        unsure = [False] * len(shares)
        if self._settings.confidence == "votes":
            count = self._settings.smoothing.samples
            votes = self._smoother.votes(tuned, text, count, "certificate", seed=seed, picture_id=digest)
            shares = list(votes / count)
            unsure = [predict_or_abstain(own, self._settings.smoothing.alpha) is None for own in votes]
        return [
            prediction(
                share,
                self._names,
                method.name,
                flags=(KEPT_START,) * kept + (ABSTAINED,) * abstained,
                mean_cosine=float(mean_cosine(features)),
            )
            for share, method, kept, abstained, features in zip(
                shares, self._settings.chosen, tuned.skipped, unsure, tuned.text_features, strict=True
            )
        ]


def plans_for(settings: MedicalSettings, dataset: Dataset) -> Sequence[TuningPlan | None]:
    """The tuning of each method; None for one without objectives."""
    return [method.plan(settings.family_for(dataset)) for method in settings.chosen]


def text_side(backbone: Backbone, dataset: Dataset, prompt: Prompt, settings: MedicalSettings) -> TextSide:
    """The class texts of a data set under a prompt."""
    return TextSide(
        backbone,
        dataset.class_names,
        prompt,
        allow_duplicates=dataset.allow_duplicates,
        memory_budget=settings.memory_budget,
    )
