"""Settings of an evaluation, and the resulting settings of each data set."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator, model_validator

from otpt.calibration import Calibrated
from otpt.data import Dataset, stratified
from otpt.errors import OtptError
from otpt.hooks import EvaluationHook
from otpt.methods import Method, by_kind, names_with_attributes, read_attributes, refuse_views
from otpt.methods.method import INITS, kind_of
from otpt.prompts import TextFeatures
from otpt.prompts.learned import LearnedPrompt, read_contexts
from otpt.runs import folder_name
from otpt.settings import Settings

DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
CALIBRATED = "+calibrated"
"""Suffix of a method's name in the results if a calibration file was used with it."""
_UNCHANGED = (
    "all_tokens", "augmix", "fpp", "memory_budget", "multi_label", "official_precision", "reject", "reject_threshold",
    "templates",
)  # fmt: skip
"""Fields that are the same for all data sets."""


class EvaluationSettings(Settings):
    """Settings that determine an evaluation's results, except the model and the data sets.

    Methods and prompts are all run in one pass. In paths of ``contexts`` and ``attributes``, ``{dataset}`` is replaced
    by the data set's name. ``prompts=None`` takes each data set's own prompt.
    """

    methods: tuple[Any, ...] = Field(
        DEFAULT_METHODS, min_length=1, description=Settings.model_fields["methods"].description
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="seeds of the views, one pass each")
    limit: int | None = Field(None, ge=1, description="only this many images of each set, all classes in proportion")
    shard_size: int = Field(64, ge=1, description="images per shard; a killed process loses at most one shard")
    features: Literal["full", "float16"] = Field("full", description="float16 rounds image features; half the cache")
    save_probabilities: bool = Field(False, description="store all probabilities of every row")
    n_bins: int = Field(20, ge=1, le=100, description="bins of the calibration errors")
    side: Literal["right", "left"] = Field("right", description="closed side of the bins")

    @field_validator("seeds", mode="before")
    @classmethod
    def _read_seeds(cls, given: Any) -> Any:
        try:
            return tuple(operator.index(each) for each in given)
        except TypeError:
            raise OtptError(f"The seeds are {given!r}; expected a list of whole numbers, such as [0, 1, 2].") from None

    @model_validator(mode="after")
    def _check_evaluation(self) -> EvaluationSettings:
        each_once("method", [method.name for method in self.run_methods])
        each_once("seed", self.seeds)
        if self.prompts is not None:
            each_once("prompt", [prompt.name for prompt in self.prompts])
        networks = {each.adapt if kind_of(each).trained else "" for each in self.methods}
        named = ", ".join(method.name for method in self.methods)
        if len(networks) > 1:
            raise OtptError(f"{named}: {max(networks)} runs on a network of its own; give a command for each.")
        from_words = any(each.starts_from_words for each in self.methods) and networks == {""}
        if self.prompts is not None and not from_words:
            raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
        for name in ("groups", "examples"):
            if getattr(self, name) is not None:
                raise OtptError(f"{name} were given to an evaluation; predict the images with them instead.")
        for hook, methods in self.hooks:
            hook.check(self, methods)
        return self

    @property
    def hooks(self) -> list[tuple[EvaluationHook, list[Method]]]:
        """Evaluation hooks, each with its methods."""
        return [(kind.evaluation, list(methods)) for kind, methods in by_kind(self.run_methods).items()]

    @cached_property
    def run_methods(self) -> tuple[Method, ...]:
        """Methods under their names in the results."""
        names = [method.name for method in self.methods]
        calibrated = [_method_name(own) for own in self.calibrated]
        for name in calibrated:
            if calibrated.count(name) > 1:
                raise OtptError(f"Two calibrations of the method {name!r} were given; expected one per method.")
            if name not in names and name + CALIBRATED not in names:
                raise OtptError(
                    f"The calibration was made for the method {name!r}, not for {', '.join(map(repr, names))}; name "
                    "that method, or leave the calibration out."
                )
        return tuple(
            replace(each, name=each.name + CALIBRATED) if each.name in calibrated else each for each in self.methods
        )

    def calibration_of(self, method: str) -> Calibrated | None:
        """Return the calibration of a method by its name in the results, or None."""
        return next((own for own in self.calibrated if _method_name(own) + CALIBRATED == method), None)

    def variants(self, dataset: Dataset) -> list[Dataset]:
        """Return the variants in which a data set is evaluated, usually only itself."""
        found = [dataset]
        for hook, methods in self.hooks:
            found = [each for one in found for each in hook.variants(self, one, methods)]
        return found

    def contexts_for(self, dataset: str) -> Mapping[str, LearnedPrompt]:
        """Return the learned prompts of a data set by init."""
        return find_contexts(self.contexts, dataset, self.methods)

    def for_dataset(self, dataset: Dataset) -> Settings:
        """Return the settings of a data set's predictions."""
        if dataset.label_sets is not None and not self.multi_label:
            raise OtptError(f"The images of {dataset.name!r} have several labels; evaluate them with --multi-label.")
        recipe = replace(self.recipe, augmix=dataset.augmix)
        if dataset.views is not None:
            family = self.family or dataset.family
            refuse_views(self.methods, dataset.name, dataset.views, family, dataset.registered_name)
            recipe = recipe.of(dataset.views)
        plugins = dict(self.plugins)
        for hook, _ in self.hooks:
            plugins |= hook.plugins(self, dataset)
        return Settings(
            **{name: getattr(self, name) for name in _UNCHANGED},
            methods=self.run_methods,
            classes=dataset.class_names,
            prompts=self.prompts or (dataset.prompt,),
            contexts=tuple(self.contexts_for(dataset.name).values()),
            attributes=find_attributes(self.attributes, dataset.name, dataset.class_names, self.methods),
            family=self.family or dataset.family,
            dataset=dataset.registered_name,
            stream_length=min(len(dataset), self.limit or len(dataset)),
            views=recipe,
            texts=None if dataset.text_features is None else TextFeatures(torch.from_numpy(dataset.text_features)),
            allow_duplicates=dataset.allow_duplicates,
            plugins={**plugins, **dataset.system},
        )


def each_once(kind: str, names: Sequence[object]) -> None:
    """Raise ``OtptError`` for an empty list or duplicate names."""
    if not names:
        raise OtptError(f"No {kind} was given; expected at least one.")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise OtptError(f"The {kind} {twice!r} is given twice; each is run once.")


def find_contexts(sources: Sequence[Any], dataset: str, methods: Sequence[Method]) -> Mapping[str, LearnedPrompt]:
    """Return the learned prompts of a data set by init."""
    inits = {method.init: method.name for method in methods if INITS[method.init].uses == "contexts"}
    found = read_contexts([_for_dataset(each, dataset) if isinstance(each, (str, Path)) else each for each in sources])
    for kind in found:
        if kind not in inits:
            plain = next((method.name for method in methods if method.init == "words"), None)
            hint = "" if plain is None else f"take {kind + '+' + plain!r} instead of {plain!r}, or "
            raise OtptError(
                f"A learned prompt of kind {kind!r} was given, but no method uses it; {hint}remove the prompt."
            )
    for init, name in inits.items():
        if init not in found:
            raise OtptError(
                f"Method {name!r} needs a learned prompt of kind {init!r}; pass its file with --context (in Python "
                f"contexts=[…]), or train one with 'otpt train'."
            )
    return found


def find_attributes(
    source: Any, dataset: str, class_names: Sequence[str], methods: Sequence[Method]
) -> Mapping[str, Sequence[str]]:
    """Return the attributes of a data set's classes, or none if no method needs them."""
    if all(INITS[method.init].uses != "attributes" for method in methods):
        if source is not None:
            named = ", ".join(method.name for method in methods)
            raise OtptError(f"Attributes were given, but no method starts from them ({named}); leave them out.")
        return {}
    if isinstance(source, (str, Path)):
        source = read_attributes(Path(_for_dataset(source, dataset)).expanduser())
    found: Mapping[str, Sequence[str]] = source or {}
    names_with_attributes(class_names, found)  # raises for classes without attributes
    return found


def overlaps(settings: EvaluationSettings, dataset: Dataset) -> Iterator[str]:
    """Yield a sentence for each learned prompt or network that is known to be trained on images of ``dataset``."""
    learned: list[tuple[str, Sequence[str]]] = [
        (f"the prompt of {kind!r}", context.images) for kind, context in settings.contexts_for(dataset.name).items()
    ]
    for hook, _ in settings.hooks:
        learned += hook.learned_from(settings)
    keys = stratified(dataset).image_keys(settings.limit) if any(images for _, images in learned) else ()
    for what, images in learned:
        known = set(images)
        seen = sum(key in known for key in keys)
        if seen:
            yield (
                f"{seen} of the {len(keys)} images of {dataset.name!r} are among those that {what} was learned from: "
                "accuracy and calibration on them are not those on new images. Evaluate on another split or folder."
            )


def _method_name(calibrated: Calibrated) -> str:
    return str(calibrated.calibration.facts["method"]["name"])


def _for_dataset(path: str | Path, dataset: str) -> str:
    return str(path).replace("{dataset}", folder_name(dataset))
