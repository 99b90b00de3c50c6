"""What a judge of a medical system is, and the one for a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from otpt.classifier import Prediction
from otpt.data import Dataset
from otpt.medical.settings import MedicalSettings

Pictures = Sequence[tuple[Image.Image, str]]
"""Opened pictures, each with the digest of its content, which keys its random numbers."""


class SystemJudge(Protocol):
    """Judges pictures of one data set by all methods of a system."""

    def __call__(self, pictures: Pictures, *, seed: int) -> list[list[Prediction]]:
        """For each picture the predictions, column by column."""

    def label(self, label: int, *, seed: int) -> int:
        """What counts as right for a picture of class ``label``."""


def system_judge(model: Any, dataset: Dataset, settings: MedicalSettings) -> SystemJudge:
    """The judge; an error now if model, data set or trained files do not fit."""
    from otpt.medical.baple.judge import BapleJudge
    from otpt.medical.fpt.judge import FptJudge
    from otpt.medical.promptsmooth.judge import PromptSmoothJudge

    kinds = {"baple": BapleJudge, "fpt": FptJudge, "promptsmooth": PromptSmoothJudge}
    return kinds[settings.system](model, dataset, settings)


def prediction(
    shares: npt.NDArray[np.float64],
    class_names: tuple[str, ...],
    method: str,
    *,
    flags: tuple[str, ...] = (),
    mean_cosine: float = float("nan"),
) -> Prediction:
    """The prediction of probabilities (C,)."""
    best = int(shares.argmax())
    return Prediction(
        label=class_names[best],
        confidence=float(shares[best]),
        index=best,
        probabilities=shares,
        class_names=class_names,
        method=method,
        flags=flags,
        mean_cosine=mean_cosine,
    )
