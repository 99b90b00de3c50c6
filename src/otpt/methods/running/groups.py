"""Methods that share an init: its text features are prepared once, each adaptation is computed once per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.calibration import BaseTexts
from otpt.features.cache import FeatureCache
from otpt.methods.batch import Batch
from otpt.methods.method import Method
from otpt.methods.output import Adapted, Output
from otpt.methods.prompt_tuning import TextSide, TuningConfig, tune
from otpt.methods.prompt_tuning.gradient_cache import CachedGradients
from otpt.methods.prompt_tuning.gradients import GradientStore, HeldGradients
from otpt.methods.prompt_tuning.passes import in_passes, logits_and_extras, mean_cosine, split_extras
from otpt.methods.running.adapting import AdaptingGroup
from otpt.methods.running.calling import naming_images
from otpt.methods.running.rounds import views_needed
from otpt.methods.task import Task
from otpt.prompts.learned import CocoopContext
from otpt.transfers import Steps, join, run
from otpt.views import ViewRecipe


class Group(Protocol):
    """Methods under one initial prompt.

    Attributes:
        prompt: its name in the results.
        methods: in their order.
    """

    prompt: str
    methods: tuple[Method, ...]

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """For each method the outputs of all images; hands out what it needs on the host."""

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph that is kept; 0 if none is."""

    @property
    def bytes_per_image(self) -> int:
        """Bytes that an image takes beside the graph that is kept."""

    def release(self) -> int:
        """Give the graph up; returns the bytes that each image then takes for one of its own."""


class Tower(Protocol):
    """What a group must know of a backbone."""

    @property
    def family(self) -> str:
        """The kind of its image tower, for published temperatures."""


class GraphlessGroup:
    """What groups share that keep no graph of text features."""

    prompt: str
    methods: tuple[Method, ...]
    graph_bytes = 0
    bytes_per_image = 0

    def release(self) -> int:
        """See :class:`Group`."""
        return 0


class TextGroup(AdaptingGroup):
    """Methods whose text features come from one context: of words, of CoOp, or of vectors of the user's."""

    bytes_per_image = 0

    def __init__(
        self,
        prompt: str,
        methods: tuple[Method, ...],
        backbone: Tower,
        text: TextSide,
        task: Task,
        *,
        base_texts: BaseTexts | None = None,
    ) -> None:
        super().__init__(methods, backbone.family, text, task, base_texts)
        self.prompt, self.text = prompt, text
        self._cache: FeatureCache | None = None
        self._gradient_size = 0
        self._recipes = [self._recipe(method) for method in methods]

    def use_cache(self, cache: FeatureCache | None, gradient_size: int) -> None:
        """Keep gradients at the init in a cache, unless all prompts' ``gradient_size`` numbers exceed the features."""
        self._cache, self._gradient_size = cache, gradient_size

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`."""
        recipes = list(dict.fromkeys(self._recipes))
        counts = yield from join([self._by_views(recipe, batch) for recipe in recipes])
        parts = [
            (recipe, count, images)
            for recipe, own in zip(recipes, counts, strict=True)
            for count, images in own.items()
        ]
        found = yield from join(
            [
                self._part(recipe.of(count), self._methods_of(recipe), batch.part(images))
                for recipe, count, images in parts
            ]
        )
        answers: dict[tuple[str, int], Output] = {}
        for (recipe, count, images), outputs in zip(parts, found, strict=True):
            more = {"views": float(count)} if recipe.rounds else {}
            for method in self._methods_of(recipe):
                with_count = (replace(each, extras={**each.extras, **more}) for each in outputs[method.name])
                answers |= {(method.name, image): each for image, each in zip(images, with_count, strict=True)}
        return [[answers[method.name, image] for image in range(len(batch))] for method in self.methods]

    def is_enough(self, recipe: ViewRecipe, features: Tensor) -> bool:
        """Whether the methods that need this kind of views need no more than those with features (n, D)."""
        alike = [each for each in self._recipes if each.kind == recipe.kind and each.n_views > 1]
        return all(each.rounds and run(self._needed(each, features)) <= len(features) for each in alike)

    def _by_views(self, recipe: ViewRecipe, batch: Batch) -> Steps[dict[int, list[int]]]:
        """Positions in the batch by the number of views that these images need."""
        if not recipe.rounds:
            return {recipe.n_views: list(range(len(batch)))}
        found: dict[int, list[int]] = {}
        counts = yield from join([self._needed(recipe, image.features[recipe.kind]) for image in batch.images])
        for i, count in enumerate(counts):
            found.setdefault(count, []).append(i)
        return found

    def _needed(self, recipe: ViewRecipe, features: Tensor) -> Steps[int]:
        """The number of views that an image needs, of which features (n, D) are known."""
        starts = self._starts_of(features[:1])

        def zero_shot(count: int) -> Tensor:
            return self._initial(features[None, :count], starts).view_logits(0)

        if features.device.type == "cpu":  # each round when it is its turn
            return views_needed(recipe, len(features), zero_shot)
        counts = [count for count in recipe.rounds if count <= len(features)]
        found = dict(zip(counts, (yield [zero_shot(count) for count in counts]), strict=True))
        return views_needed(recipe, len(features), found.__getitem__)

    def _methods_of(self, recipe: ViewRecipe) -> list[Method]:
        return [method for method, own in zip(self.methods, self._recipes, strict=True) if own == recipe]

    def _recipe(self, method: Method) -> ViewRecipe:
        recipe = self._task.recipe_for(method)
        assert recipe is not None
        return recipe

    def _starts(self, batch: Batch) -> Tensor | None:
        """(B, n, W) initial contexts of the images' own; None where all have the same."""
        return self._starts_of(batch.features(self._recipes[0].of(1))[:, 0])

    def _starts_of(self, clean: Tensor) -> Tensor | None:
        """The same, from unit features (B, D) of the clean views."""
        return None

    def _part(self, recipe: ViewRecipe, methods: Sequence[Method], batch: Batch) -> Steps[dict[str, list[Output]]]:
        """The outputs of images that need the same views, by method."""
        views, starts = batch.features(recipe), self._starts(batch)
        at_init = self._initial(views, starts)
        keep_texts = any(method.needs_adapted_views for method in methods)
        tune = partial(self._tune, views, starts, at_init, batch.names, keep_texts)
        return (yield from self._outputs(methods, at_init, batch.names, tune))

    def _stores(self, views: Tensor, starts: Tensor | None, *, several: bool) -> Steps[Sequence[GradientStore] | None]:
        """Where gradients at the init are kept: on disk, or for the moment if ``several`` calls share them."""
        if self._cache is not None and starts is None and self._gradient_size <= views[0].numel():
            (on_host,) = yield [views]
            return [CachedGradients(self._cache, self.text, each) for each in on_host]
        return [HeldGradients() for _ in views] if several and starts is None else None

    def _initial(self, views: Tensor, starts: Tensor | None) -> Adapted:
        text, features = self.text, views.__getitem__
        none_skipped = torch.zeros(len(views), dtype=torch.bool)
        if starts is None:
            shared = text.text_features.expand(len(views), -1, -1)
            extras = {"mean_cosine": mean_cosine(text.class_features(text.text_features)).expand(len(views))}
            rows, texts = partial(_rows, text, views, shared), partial(_class_features, text, shared)
            return Adapted(text.zero_shot(views), rows, none_skipped, extras, texts, same_texts=True, features=features)

        def at_start(clean: Tensor, contexts: Tensor) -> Tensor:
            return logits_and_extras(text, list(clean), text.encoder.encode(contexts), keep_texts=True)

        found = in_passes(at_start, views[:, :1], starts, size=text.contexts_per_pass)
        logits, cosines, own = split_extras(text, found)
        assert own is not None
        rows, texts = partial(_rows, text, views, own), partial(_class_features, text, own)
        return Adapted(logits, rows, none_skipped, {"mean_cosine": cosines}, texts, features=features)

    def _tune(
        self,
        views: Tensor,
        starts: Tensor | None,
        initial: Adapted,
        names: Sequence[str],
        keep_texts: bool,
        wanted: Mapping[TuningConfig, Sequence[int]],
    ) -> Steps[Mapping[TuningConfig, Adapted]]:
        """Images as each config tunes them; those that it is not ``wanted`` for stay as they are at the init."""
        parts = dict.fromkeys(map(tuple, wanted.values()))
        stores = yield from self._stores(views, starts, several=len(parts) > 1)
        text = self.text
        found = {}
        for images in parts:
            configs = [config for config, each in wanted.items() if tuple(each) == images]
            chosen = _rows_of(views, images)
            own = None if starts is None else _rows_of(starts, images)
            known = None if stores is None else [stores[i] for i in images]
            with naming_images([names[i] for i in images], configs):
                all_tuned = tune(text, chosen, configs, starts=own, known=known, keep_texts=keep_texts)
            for config, tuned in all_tuned.items():
                texts = tuned.text_features
                rows = None if texts is None else partial(_rows, text, chosen, texts)
                features = None if texts is None else partial(_class_features, text, texts)
                extras = {"mean_cosine": tuned.mean_cosine}
                found[config] = Adapted(tuned.logits, rows, tuned.skipped, extras, features).among(initial, images)
        return found


class ConditionalGroup(TextGroup):
    """CoCoOp: an initial context of its own for each image."""

    def __init__(
        self,
        prompt: str,
        methods: tuple[Method, ...],
        backbone: Backbone,
        text: TextSide,
        task: Task,
        *,
        context: CocoopContext,
        condition: str,
    ) -> None:
        super().__init__(prompt, methods, backbone, text, task)
        self._backbone, self._condition = backbone, condition
        self._context = context.to(backbone.device, backbone.dtype)

    def _starts(self, batch: Batch) -> Tensor | None:
        recipe = ViewRecipe(n_views=1)
        if self._condition == "raw":
            pixels = batch.pixels(recipe, self._backbone)
            return self._context.starts(self._backbone.encode_pixels(pixels[:, 0], unit=False))
        return super()._starts(batch)

    def _starts_of(self, clean: Tensor) -> Tensor | None:
        return self._context.starts(clean)


def _rows_of(tensor: Tensor, images: Sequence[int]) -> Tensor:
    """Those of some images, of (B, …); one by one: a list of indices would be copied to the device and waited for."""
    return tensor if len(images) == len(tensor) else torch.stack([tensor[i] for i in images])


def _rows(text: TextSide, views: Tensor, text_features: Tensor, i: int) -> Tensor:
    """Logits (V, C) of all views of image ``i``, of (B, V, D) and (B, C, D)."""
    return text.logits(views[i], text_features[i])


def _class_features(text: TextSide, text_features: Tensor, i: int) -> Tensor:
    """Text features (C, D) of image ``i``, of (B, T, D) of all texts."""
    return text.class_features(text_features[i])
