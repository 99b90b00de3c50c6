"""Settings of an evaluation of medical systems; everything else about it is as in ``otpt.evaluation``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from otpt.data import Dataset
from otpt.errors import OtptError, unknown
from otpt.evaluation.settings import Settings, each_once, prompt_name
from otpt.evaluation.starts import ContextSource, read_context
from otpt.medical.promptsmooth.smoothing import CONFIDENCES, Smoothing
from otpt.medical.trained import TrainedFile, file_for, read_trained_files
from otpt.prompts import Prompt
from otpt.prompts.learned import CoopContext, LearnedPrompt
from otpt.views import ViewRecipe

PROMPTS = {"kather": Prompt("An H&E image patch of", tokens=5)}
"""PromptSmooth's own contexts: five of the seven tokens are tuned ("an h & e image"), "patch of" stays as it is."""

_COLUMN = {"baple": Prompt("learned context"), "fpt": Prompt("no text")}


@dataclass(frozen=True)
class MedicalSettings(Settings):
    """Settings, and what the medical systems need beyond them.

    Nothing in the evaluation of BAPLe is random, and its published numbers are means over the target classes. So there
    the seeds of the run **are** the target classes that files were given for: means over seeds are means over targets.

    Args:
        trained: files of ``otpt train`` for BAPLe and FPT (see :mod:`otpt.medical.trained`).
        smoothing: PromptSmooth's numbers.
        confidence: of PromptSmooth: the soft-max on the "clean" view, or the share of ``votes`` among
            ``smoothing.samples`` noisy copies. The paper does not say which its ECE is of.
        keep: folder in which FPT keeps keys and values; None computes them anew.
    """

    trained: Sequence[str] = ()
    smoothing: Smoothing = field(default_factory=Smoothing)
    confidence: str = "clean"
    keep: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "trained", tuple(self.trained))
        systems = list(dict.fromkeys(method.system for method in self.chosen))
        if len(systems) > 1 or not systems[0]:
            named = ", ".join(f"{method.name} ({method.system or 'test-time tuning'})" for method in self.chosen)
            raise OtptError(f"An evaluation runs methods of one system; given were {named}. Give a command for each.")
        for method in self.chosen:
            if method.calibration != "none":
                raise OtptError(
                    f"Method {method.name!r} takes no calibration afterwards; leave {method.calibration!r} out."
                )
        if self.confidence not in CONFIDENCES:
            raise unknown("confidence", self.confidence, CONFIDENCES)
        if self.system == "promptsmooth" and self.contexts and self.prompts is not None:
            raise OtptError("PromptSmooth was given words and a learned context to start from; expected one of them.")
        if self.system == "fpt" and self.seeds != (0,):
            raise OtptError("The evaluation of FPT has no seeds to choose: nothing in it is random.")
        if self.system == "baple":
            object.__setattr__(self, "seeds", self._targets())

    @classmethod
    def extending(cls, settings: Settings, **more: Any) -> MedicalSettings:
        """These settings of the core, and more."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(settings)}, **more)

    @property
    def system(self) -> str:
        """The system whose methods are run."""
        return self.chosen[0].system

    @cached_property
    def files(self) -> tuple[TrainedFile, ...]:
        """The trained files, read."""
        return read_trained_files(self.trained)

    def _targets(self) -> tuple[int, ...]:
        """The target classes, for each of which every method must have a file."""
        names = [method.name for method in self.chosen]
        targets = sorted({file.target for file in self.files if file.method in names and file.target is not None})
        if tuple(self.seeds) not in {(0,), tuple(targets)}:
            raise OtptError("The evaluation of BAPLe has no seeds to choose: it runs once for each target class.")
        for name in names:
            for target in targets:
                file_for(self.files, name, target)
            if not targets:
                file_for(self.files, name)  # says what is missing
        return tuple(targets)

    def recipe_for(self, dataset: Dataset) -> ViewRecipe:
        """One clean view: the systems make what else they need of it."""
        return replace(self.recipe, augmix=False, n_views=1)

    def contexts_for(self, dataset: Dataset) -> Mapping[str, LearnedPrompt]:
        """None: a learned context is PromptSmooth's prompt."""
        return {}

    def prompts_for(self, dataset: Dataset) -> tuple[Prompt, ...]:
        """PromptSmooth's contexts; for the systems without words, what stands in the column of the prompt."""
        if self.system in _COLUMN:
            return (_COLUMN[self.system],)
        if self.contexts:
            prompts = tuple(_few_shot_prompt(source, dataset.name) for source in self.contexts)
            each_once("context", [prompt_name(prompt) for prompt in prompts])
            return prompts
        if self.prompts is None and dataset.name.partition("-")[0] in PROMPTS:
            return (PROMPTS[dataset.name.partition("-")[0]],)
        return super().prompts_for(dataset)

    def system_numbers(self, dataset: Dataset) -> dict[str, Any]:
        """What decides the numbers of a data set beyond the core's settings."""
        if self.system == "promptsmooth":
            numbers: dict[str, Any] = {**asdict(self.smoothing), "confidence": self.confidence}
        else:
            numbers = {
                file.method if file.target is None else f"{file.method} {file.target}": file.content.digest
                for file in self.files
                if file.method in {method.name for method in self.chosen}
            }
        return {"system": {"name": self.system, **numbers}}


def _few_shot_prompt(source: ContextSource, dataset: str) -> Prompt:
    learned = read_context(source, dataset)
    if not isinstance(learned, CoopContext):
        raise OtptError(f"PromptSmooth starts from a context of CoOp; given was one of the kind {learned.kind!r}.")
    return learned.prompt()
