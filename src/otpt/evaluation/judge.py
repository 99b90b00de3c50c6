"""The class texts of a data set under every prompt, and what all methods say of its pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.classifier import Classifier, Prediction
from otpt.data import Dataset
from otpt.evaluation.cache import FeatureCache
from otpt.evaluation.gradients import CachedGradients
from otpt.evaluation.settings import Settings, prompt_name
from otpt.methods import Method
from otpt.prompts import Prompt, check_class_names, tokenize_prompts
from otpt.prompts.learned import CocoopContext, LearnedPrompt, MaplePrompts
from otpt.prompts.tokens import real_lengths
from otpt.threads import one_thread
from otpt.tuning import Judgement, TextSide, TuningPlan, TwoTowerSide, judge
from otpt.tuning.two_tower import prompted_tower
from otpt.views import ViewRecipe, make_views, open_with_digest

_Side = TypeVar("_Side", TextSide, TwoTowerSide)


@dataclass(frozen=True)
class _Pictures:
    """Positions in the data set, unit features (B, V, D), and the seed of the views."""

    indices: Sequence[int]
    views: Tensor
    seed: int


@dataclass(frozen=True)
class _Start:
    """Methods that start from the same prompt; ``name`` is the prompt's in the rows."""

    name: str
    methods: tuple[Method, ...]
    ask: Callable[[_Pictures, Sequence[TuningPlan]], Judgement]


class DatasetJudge:
    """Judges the pictures of one data set by all prompts and methods.

    Args:
        cache: of features, where gradients are kept too; None to compute all of them.

    Attributes:
        columns: (prompt, method) of a picture's predictions, in their order.
        at_once: pictures that memory has room for at a time.
    """

    def __init__(
        self, backbone: Backbone, dataset: Dataset, settings: Settings, *, cache: FeatureCache | None = None
    ) -> None:
        self._backbone, self._dataset, self._settings = backbone, dataset, settings
        self._cache, self._gradient_size = cache, 0
        self._classifier = classifier_for(backbone, dataset, settings)
        self._family = settings.family_for(dataset)
        self.columns = settings.columns_for(dataset)
        # bytes that graphs which are kept may still take; those of the largest one that each picture makes for itself
        self._left, self._made_anew = settings.memory_budget, 1
        self._starts: list[_Start] = []
        with one_thread():
            words = self._methods("words")
            for prompt in settings.prompts_for(dataset) if words else ():
                text = self._text(_words(prompt, backbone, settings), words)
                self._starts.append(_Start(prompt_name(prompt), words, partial(self._ask, text)))
            for start, learned in settings.contexts_for(dataset).items():
                self._starts += self._learned(learned, self._methods(start))
        self.at_once = max(settings.memory_budget // self._made_anew, 1)

    def __call__(self, indices: Sequence[int], views: Tensor, *, seed: int) -> list[list[Prediction]]:
        """Predictions of pictures by their positions in the data set and features (B, V, D), column by column."""
        pictures = _Pictures(indices, views, seed)
        found: list[dict[tuple[str, str], Prediction]] = [{} for _ in indices]
        for start in self._starts:
            judged = start.ask(pictures, self._plans(start.methods))
            answers = self._classifier.predictions(judged, start.methods, self._dataset.class_names)
            for own, answer in zip(found, answers, strict=True):
                own |= {(start.name, method): prediction for method, prediction in answer.items()}
        return [[own[column] for column in self.columns] for own in found]

    def _methods(self, start: str) -> tuple[Method, ...]:
        return tuple(method for method in self._settings.chosen if method.start == start)

    def _plans(self, methods: Sequence[Method]) -> list[TuningPlan]:
        return [plan for method in methods if (plan := method.plan(self._family)) is not None]

    def _learned(self, learned: LearnedPrompt, methods: tuple[Method, ...]) -> list[_Start]:
        if isinstance(learned, MaplePrompts):
            side = TwoTowerSide(
                self._backbone,
                self._dataset.class_names,
                learned,
                allow_duplicates=self._dataset.allow_duplicates,
                memory_budget=self._settings.memory_budget,
            )
            views = self._settings.two_tower_recipe.n_views
            graphs = (side.tower.graph_bytes(plan.selected_count(views)) for plan in self._plans(methods))
            self._made_anew = max(self._made_anew, *graphs, 0)
            return [_Start(learned.kind, methods, partial(self._ask_two_tower, self._kept(side, methods)))]
        text = self._text(learned.prompt(), methods)
        if not isinstance(learned, CocoopContext):
            return [_Start(learned.kind, methods, partial(self._ask, text))]
        conditions = dict.fromkeys(method.condition for method in methods)
        return [
            _Start(
                learned.kind,
                tuple(method for method in methods if method.condition == condition),
                partial(self._ask_conditional, text, learned, condition),
            )
            for condition in conditions
        ]

    def _text(self, prompt: Prompt, methods: Sequence[Method]) -> TextSide:
        side = TextSide(
            self._backbone,
            self._dataset.class_names,
            prompt,
            allow_duplicates=self._dataset.allow_duplicates,
            memory_budget=self._settings.memory_budget,
        )
        self._gradient_size += side.start.numel()
        return self._kept(side, methods)

    def _kept(self, side: _Side, methods: Sequence[Method]) -> _Side:
        """The side with its graph if a method needs it and the budget has room; else without."""
        tunes = any(method.objectives for method in methods)
        size = side.linearisation.graph_bytes
        if tunes and 0 < size <= self._left:
            self._left -= size
            return side
        side.linearisation.release()
        if tunes:
            self._made_anew = max(self._made_anew, size or self._settings.memory_budget)
        return side

    def _ask(self, text: TextSide, pictures: _Pictures, plans: Sequence[TuningPlan]) -> Judgement:
        views, cache = pictures.views, self._cache
        # Many prompts, or a context for each class, would fill the cache with gradients in place of features.
        if cache is None or self._gradient_size > views[0].numel():
            return judge(text, views, plans)
        return judge(text, views, plans, known=[CachedGradients(cache, text, picture) for picture in views])

    def _ask_conditional(
        self, text: TextSide, context: CocoopContext, condition: str, pictures: _Pictures, plans: Sequence[TuningPlan]
    ) -> Judgement:
        features = pictures.views[:, 0]
        if condition == "raw":
            clean = replace(self._settings.recipe, n_views=1)
            pixels = torch.cat([self._pixels(index, clean, pictures.seed) for index in pictures.indices])
            features = self._backbone.encode_pixels(pixels, unit=False)
        return judge(text, pictures.views, plans, starts=context.starts(features))

    def _ask_two_tower(self, side: TwoTowerSide, pictures: _Pictures, plans: Sequence[TuningPlan]) -> Judgement:
        recipe = self._settings.two_tower_recipe
        pixels = [self._pixels(index, recipe, pictures.seed) for index in pictures.indices]
        return side.judge(torch.stack(pixels), plans)

    def _pixels(self, index: int, recipe: ViewRecipe, seed: int) -> Tensor:
        """Views (V, 3, S, S) of a picture, for prompts that reach into the image tower."""
        picture, digest = open_with_digest(self._dataset[index].source)
        dtype = np.float64 if self._backbone.dtype == torch.float64 else np.float32
        views = make_views(picture, recipe, self._backbone.preprocessing, seed=seed, picture_id=digest, dtype=dtype)
        return torch.from_numpy(views)


def check_fit(backbone: Backbone, dataset: Dataset, settings: Settings) -> None:
    """An error now, before a run is begun, if methods, class names or prompts do not fit the backbone or each other."""
    classifier_for(backbone, dataset, settings)
    names = check_class_names(dataset.class_names, allow_duplicates=dataset.allow_duplicates)
    if any(method.start == "words" for method in settings.chosen):
        for prompt in settings.prompts_for(dataset):
            tokenize_prompts(backbone.text, names, _words(prompt, backbone, settings))
    for learned in settings.contexts_for(dataset).values():
        if isinstance(learned, MaplePrompts):
            prompted_tower(backbone, learned)
            continue
        if isinstance(learned, CocoopContext):
            learned.check_fits(backbone.embed_dim)
        tokenize_prompts(backbone.text, names, learned.prompt())


def classifier_for(backbone: Backbone, dataset: Dataset, settings: Settings) -> Classifier:
    """The classifier of a data set; an error now if one of the methods does not fit the backbone."""
    family = settings.family_for(dataset)
    made = [
        Classifier(
            backbone,
            method,
            family=family,
            official_precision=settings.official_precision,
            memory_budget=settings.memory_budget,
        )
        for method in settings.chosen
    ]
    return made[0]


def _words(prompt: Prompt, backbone: Backbone, settings: Settings) -> Prompt:
    return whole_context(prompt, backbone) if settings.all_tokens else prompt


def whole_context(prompt: Prompt, backbone: Backbone) -> Prompt:
    """The prompt with all tokens of its context tuned, also where words are more than one token."""
    if prompt.tokens is not None or prompt.vectors is not None:
        return prompt
    whole, empty = real_lengths(backbone.text.tokenize([prompt.context, ""]).cpu()).tolist()
    return replace(prompt, tokens=whole - empty)
