"""Evaluation of BAPLe, FPT and PromptSmooth: ``plugins={"trained": files, "promptsmooth": {"smoothing": …}}``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.settings import HOOKS, EvaluationHook, EvaluationSettings
from otpt.methods import Method
from otpt.methods.inits.trained import TrainedFile, file_for, read_trained_files
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.prompts import Prompt

NOISE_PROMPTS = {"kather": Prompt("An H&E image patch of", tokens=5)}
"""PromptSmooth's own contexts: five of the seven tokens are tuned ("an h & e image"), "patch of" is fixed."""

_read = lru_cache(maxsize=4)(read_trained_files)


def trained_files(settings: EvaluationSettings) -> tuple[TrainedFile, ...]:
    """What was trained for BAPLe and FPT."""
    return _read(tuple(settings.plugins.get("trained") or ()))


class TrainedHook(EvaluationHook):
    """A network that 'otpt train' has made; nothing in its evaluation is random."""

    def check(self, settings: EvaluationSettings, methods: Sequence[Method]) -> None:
        """Refuse seeds."""
        if settings.seeds != (0,):
            raise OtptError(f"The evaluation of {methods[0].name} has no seeds to choose: nothing in it is random.")

    def plugins(self, settings: EvaluationSettings, dataset: Dataset) -> Mapping[str, Any]:
        """Return the files, read."""
        return {"trained": trained_files(settings)}

    def learned_from(self, settings: EvaluationSettings) -> Iterator[tuple[str, Sequence[str]]]:
        """The training images of each file."""
        for file in trained_files(settings):
            yield f"{file.method!r}", tuple(file.content.notes.get("images", ()))


class BapleHook(TrainedHook):
    """BAPLe's published numbers are means over target classes, on clean images and on images with the trigger."""

    def variants(self, settings: EvaluationSettings, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """For each target class that files were given for: the images, and the images with the trigger."""
        files = trained_files(settings)
        names = [method.name for method in methods]
        targets = sorted({file.target for file in files if file.method in names and file.target is not None})
        if not targets:
            file_for(files, names[0])  # raises: no file
        found = []
        for target in targets:
            for name in names:
                file_for(files, name, target)  # raises if a method has no file for this target
            variant = f"target-{target}"
            fooled = dataset.renamed(f"{dataset.name}:backdoor", labels=[target] * len(dataset))
            found += [
                dataset.as_variant(variant, {"baple": {"target": target}}),
                fooled.as_variant(variant, {"baple": {"target": target, "backdoor": True}}),
            ]
        return found


class PromptSmoothHook(EvaluationHook):
    """Noise, votes, and a prompt of its own for some data sets."""

    def plugins(self, settings: EvaluationSettings, dataset: Dataset) -> Mapping[str, Any]:
        """Return the numbers and the prompt."""
        own = NOISE_PROMPTS.get(dataset.registered_name.partition("-")[0]) if settings.prompts is None else None
        return {"promptsmooth": {"smoothing": _smoothing(settings), "prompt": own}}

    def facts(self, settings: EvaluationSettings) -> Mapping[str, Any]:
        """The numbers."""
        return {"smoothing": asdict(_smoothing(settings))}


def _smoothing(settings: EvaluationSettings) -> Smoothing:
    return settings.plugins.get("promptsmooth", {}).get("smoothing") or Smoothing()


HOOKS.update({"baple": BapleHook(), "fpt": TrainedHook(), "promptsmooth": PromptSmoothHook()})
