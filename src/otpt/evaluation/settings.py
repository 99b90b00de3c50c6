"""What an evaluation does, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path

from otpt.calibration import Calibrated
from otpt.data import Dataset
from otpt.errors import OtptError, unknown
from otpt.evaluation.calibrations import CALIBRATED, CalibrationSource, with_calibrations
from otpt.evaluation.sources import AttributeSource, find_attributes, find_contexts
from otpt.methods import FAMILIES, Method, get_methods
from otpt.methods.inits.trained import TrainedFile, file_for, read_trained_files
from otpt.methods.predictor import kind_of
from otpt.methods.promptsmooth.smoothing import Smoothing
from otpt.prompts import MEMORY_BUDGET, Prompt, Templates
from otpt.prompts.learned import ContextSource, LearnedPrompt
from otpt.runs.format import FEATURE_TYPES, VIEW_KEYS, check_bins
from otpt.settings import Fpp
from otpt.settings import Settings as BaseSettings
from otpt.views import ViewRecipe

NOISE_PROMPTS = {"kather": Prompt("An H&E image patch of", tokens=5)}
"""PromptSmooth's own contexts: five of the seven tokens are tuned ("an h & e image"), "patch of" stays as it is."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides an evaluation's numbers, besides the backbone and the data sets.

    Args:
        methods: names, files, or :class:`Method` objects; all are run in one pass.
        prompts: the contexts to predict with, all in one pass; None takes each data set's own.
        seeds: of the views; one pass each. (BAPLe's are its target classes, taken from its files.)
        recipe: number and kind of views. Where no method needs views, one is made.
        augmix: mix the views or not; None lets each method and data set decide.
        family: whose weights the methods take; None takes each data set's own.
        limit: images of each set, a stratified subset: classes as in the whole set. A larger one includes a smaller.
        shard_size: images in a shard, which is what a killed run may lose.
        features: "full" keeps image features as the backbone gives them; "float16" rounds them (and halves the cache).
        view_key: what keys an image's views: its decoded "pixels", or the bytes of its "file" as in earlier runs.
        all_tokens: tune all tokens of a context whose words are not single tokens, in place of an error.
        save_probabilities: keep all probabilities of every row.
        bins, side: of ECE, adaptive ECE, MCE and SCE.
        contexts: files of learned prompts for the methods that start from one, at most one per kind; ``{dataset}`` in a
            path stands for the data set's name.
        attributes: a file of attributes, or {class: [attribute, …]}, for methods that start from them (TCA);
            ``{dataset}`` in a path stands for the data set's name.
        trained: files of ``otpt train`` for BAPLe and FPT (see :mod:`otpt.methods.inits.trained`).
        smoothing: PromptSmooth's numbers.
        keep: folder in which FPT keeps keys and values; None computes them anew.
        templates: sentences of your own, for methods that start from the part ``templates``.
        fpp: FPP's numbers, its seed among them.
        reject, reject_threshold: score (:data:`otpt.rejection.SCORES`) by which images that fit none of the classes
            get the flag "rejected", and the threshold in place of the score's own. The score is the column ``unknown``.
        calibrations: files of ``otpt calibrate``, or what was read from them, at most one per method. The method is
            then called ``tpt+calibrated``, so that a run can hold it beside ``tpt``.
    """

    methods: Sequence[str | Method] = ("zero-shot", "tpt", "c-tpt", "o-tpt")
    prompts: Sequence[str | Prompt] | None = None
    seeds: Sequence[int] = (0,)
    recipe: ViewRecipe = field(default_factory=ViewRecipe)
    augmix: bool | None = None
    family: str | None = None
    official_precision: bool = False
    limit: int | None = None
    shard_size: int = 64
    features: str = "full"
    view_key: str = VIEW_KEYS[0]
    all_tokens: bool = False
    save_probabilities: bool = False
    bins: int = 20
    side: str = "right"
    memory_budget: int = MEMORY_BUDGET
    contexts: Sequence[ContextSource] = ()
    attributes: AttributeSource | None = None
    trained: Sequence[str] = ()
    smoothing: Smoothing = field(default_factory=Smoothing)
    keep: Path | None = None
    templates: Templates | None = None
    fpp: Fpp = field(default_factory=Fpp)
    reject: str | None = None
    reject_threshold: float | None = None
    calibrations: Sequence[CalibrationSource] = ()

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str):
            raise OtptError(
                f"The prompts are the single text {self.prompts!r}; expected a list, as [{self.prompts!r}]."
            )
        seeds = self.seeds if isinstance(self.seeds, (int, str)) else tuple(self.seeds)
        if isinstance(seeds, (int, str)) or not all(map(_is_seed, seeds)):
            raise OtptError(f"The seeds are {seeds!r}; expected a list of whole numbers, such as [0, 1, 2].")
        object.__setattr__(self, "seeds", seeds)
        for name in ("contexts", "trained"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        methods, calibrations = with_calibrations(get_methods(self.methods), self.calibrations)
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "calibrations", calibrations)
        if self.prompts is not None:
            prompts = tuple(Prompt(each) if isinstance(each, str) else each for each in self.prompts)
            object.__setattr__(self, "prompts", prompts)
            each_once("prompt", [prompt.name for prompt in prompts])
        each_once("method", [method.name for method in self.chosen])
        each_once("seed", list(self.seeds))
        named = ", ".join(method.name for method in self.chosen)
        kinds = list(dict.fromkeys(each.adapt if kind_of(each).trained else "" for each in self.chosen))
        if len(kinds) > 1:
            raise OtptError(f"{named}: {kinds[0] or kinds[1]} runs on a network of its own; give a command for each.")
        from_words = (each.starts_from_words and not kind_of(each).trained for each in self.chosen)
        if self.prompts is not None and not any(from_words):
            raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
        if self.family is not None and self.family not in FAMILIES:
            raise unknown("family of data sets", self.family, FAMILIES)
        if self.features not in FEATURE_TYPES:
            raise unknown("type of features", self.features, FEATURE_TYPES)
        if self.view_key not in VIEW_KEYS:
            raise unknown("key of the views", self.view_key, VIEW_KEYS)
        check_bins(self.bins, self.side)
        for name, value in (("limit", self.limit), ("shard size", self.shard_size)):
            if value is not None and value < 1:
                raise OtptError(f"The {name} is {value}; expected 1 or more.")
        _ = self.files  # says what is wrong with them
        for method in self.chosen:
            self.seeds_of(method)

    @property
    def chosen(self) -> tuple[Method, ...]:
        """The methods."""
        return get_methods(self.methods)

    @cached_property
    def files(self) -> tuple[TrainedFile, ...]:
        """What was trained for BAPLe and FPT."""
        return read_trained_files(self.trained)

    def calibrated(self, method: str) -> Calibrated | None:
        """The calibration of a method, by the name that it has in the results."""
        found: Sequence[Calibrated] = self.calibrations  # type: ignore[assignment]
        own = (each for each in found if f"{each.calibration.facts['method']['name']}{CALIBRATED}" == method)
        return next(own, None)

    def seeds_of(self, method: Method) -> tuple[int, ...]:
        """The seeds that a method is run with.

        Nothing in the evaluation of BAPLe is random, and its published numbers are means over target classes. So its
        seeds **are** the target classes that files were given for: means over seeds are means over targets.
        """
        if method.adapt == "fpt" and self.seeds != (0,):
            raise OtptError("The evaluation of FPT has no seeds to choose: nothing in it is random.")
        if method.adapt != "baple":
            return tuple(self.seeds)
        names = [each.name for each in self.chosen if each.adapt == "baple"]
        targets = sorted({file.target for file in self.files if file.method in names and file.target is not None})
        if self.seeds not in {(0,), tuple(targets)}:
            raise OtptError("The evaluation of BAPLe has no seeds to choose: it runs once for each target class.")
        if not targets:
            file_for(self.files, method.name)  # says what is missing
        for target in targets:
            file_for(self.files, method.name, target)
        return tuple(targets)

    def contexts_for(self, dataset: Dataset) -> Mapping[str, LearnedPrompt]:
        """The learned prompts that a data set's images are predicted with, by the init that they are for."""
        return find_contexts(self.contexts, dataset.name, self.chosen)

    def task_for(self, dataset: Dataset) -> BaseSettings:
        """What decides the predictions of a data set's images."""
        name = "" if dataset.is_own else dataset.name  # a user's images may be called like a registered set
        noise_prompt = NOISE_PROMPTS.get(name.partition("-")[0]) if self.prompts is None else None
        return BaseSettings(
            methods=self.chosen,
            classes=dataset.class_names,
            prompts=self.prompts or (dataset.prompt,),
            contexts=tuple(self.contexts_for(dataset).values()),
            attributes=find_attributes(self.attributes, dataset.name, dataset.class_names, self.chosen),
            family=self.family or dataset.family,
            dataset=name,
            views=replace(self.recipe, augmix=dataset.augmix),
            augmix=self.augmix,
            official_precision=self.official_precision,
            allow_duplicates=dataset.allow_duplicates,
            memory_budget=self.memory_budget,
            all_tokens=self.all_tokens,
            templates=self.templates,
            fpp=self.fpp,
            reject=self.reject,
            reject_threshold=self.reject_threshold,
            plugins={
                "promptsmooth": {"smoothing": self.smoothing, "prompt": noise_prompt},
                "baple": {"backdoor": dataset.backdoor},
                "fpt": {"keep": self.keep},
                "trained": self.files,
            },
        )


def _is_seed(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def each_once(kind: str, names: Sequence[object]) -> None:
    """``OtptError`` if there are no names, or one of them is a duplicate."""
    if not names:
        raise OtptError(f"No {kind} was given; expected at least one.")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise OtptError(f"The {kind} {twice!r} is given twice; each is run once.")
