"""Methods that share an init: its text features are prepared once, each adaptation is computed once per image."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from otpt.backbones import Backbone
from otpt.features.cache import FeatureCache
from otpt.methods.axes import NONE
from otpt.methods.batch import Batch
from otpt.methods.calling import Available, naming_images
from otpt.methods.finish import finish
from otpt.methods.method import CONTEXT, Method
from otpt.methods.output import Adapted, Output
from otpt.methods.own_functions import adapt_by_function, ask_gate, gated
from otpt.methods.prompt_tuning import TextSide, TuningConfig, tune
from otpt.methods.prompt_tuning.gradient_cache import CachedGradients
from otpt.methods.prompt_tuning.gradients import GradientStore, HeldGradients
from otpt.methods.prompt_tuning.passes import in_passes, logits_and_extras, mean_cosine, split_extras
from otpt.methods.rounds import views_needed
from otpt.methods.task import Task
from otpt.prompts.learned import CocoopContext
from otpt.views import ViewRecipe


class Group(Protocol):
    """Methods under one initial prompt.

    Attributes:
        prompt: its name in the results.
        methods: in their order.
    """

    prompt: str
    methods: tuple[Method, ...]

    def predict(self, batch: Batch) -> list[list[Output]]:
        """For each method the outputs of all images."""

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


class TextGroup:
    """Methods whose text features come from one context: of words, of CoOp, or of vectors of the user's."""

    def __init__(
        self,
        prompt: str,
        methods: tuple[Method, ...],
        backbone: Tower,
        text: TextSide,
        task: Task,
    ) -> None:
        self.prompt, self.methods = prompt, methods
        self._family, self._text, self._task = backbone.family, text, task
        self._cache: FeatureCache | None = None
        self._gradient_size = 0
        self._recipes = [self._recipe(method) for method in methods]
        self._state: dict[str, dict[str, Any]] = {}  # of stream methods

    @property
    def text(self) -> TextSide:
        """The prepared text features."""
        return self._text

    @property
    def graph_bytes(self) -> int:
        """See :class:`Group`."""
        return self._text.linearisation.graph_bytes

    @property
    def bytes_per_image(self) -> int:
        """See :class:`Group`."""
        return 0

    def use_cache(self, cache: FeatureCache | None, gradient_size: int) -> None:
        """Keep gradients at the init in a cache, unless those of all prompts, so many numbers, exceed the features."""
        self._cache, self._gradient_size = cache, gradient_size

    def release(self) -> int:
        """See :class:`Group`."""
        size = self.graph_bytes
        self._text.linearisation.release()
        return size or self._task.memory_budget

    def predict(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`."""
        answers: dict[tuple[int, int], Output] = {}
        for recipe in dict.fromkeys(self._recipes):
            own = [i for i, each in enumerate(self._recipes) if each == recipe]
            for count, images in self._by_views(recipe, batch).items():
                part = batch.part(images)
                views = part.features(recipe.of(count))
                starts = self._starts(part)
                initial = self._initial(views, starts)
                found = self._answers([self.methods[i] for i in own], part, views, starts, initial)
                for i, outputs in zip(own, found, strict=True):
                    more = {"views": float(count)} if recipe.rounds else {}
                    with_count = (replace(each, extras={**each.extras, **more}) for each in outputs)
                    answers |= {(i, image): each for image, each in zip(images, with_count, strict=True)}
        return [[answers[i, image] for image in range(len(batch))] for i in range(len(self.methods))]

    def is_enough(self, recipe: ViewRecipe, features: Tensor) -> bool:
        """Whether the methods that need this kind of views need no more than those with features (n, D)."""
        alike = [each for each in self._recipes if each.kind == recipe.kind and each.n_views > 1]
        return all(each.rounds and self._needed(each, features) <= len(features) for each in alike)

    def _by_views(self, recipe: ViewRecipe, batch: Batch) -> dict[int, list[int]]:
        """Positions in the batch by the number of views that these images need."""
        if not recipe.rounds:
            return {recipe.n_views: list(range(len(batch)))}
        found: dict[int, list[int]] = {}
        for i, image in enumerate(batch.images):
            found.setdefault(self._needed(recipe, image.features[recipe.kind]), []).append(i)
        return found

    def _needed(self, recipe: ViewRecipe, features: Tensor) -> int:
        """The number of views that an image needs, of which features (n, D) are known."""
        starts = self._starts_of(features[:1])

        def zero_shot(count: int) -> Tensor:
            return self._initial(features[None, :count], starts).view_logits(0)

        return views_needed(recipe, len(features), zero_shot)

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

    def _answers(
        self, methods: Sequence[Method], batch: Batch, views: Tensor, starts: Tensor | None, initial: Adapted
    ) -> list[list[Output]]:
        available = partial(self._available, views, initial)
        family, dataset = self._task.family, self._task.dataset
        settings = {method.name: method.settings_for(family, dataset) for method in methods}
        gates = {
            method.name: [
                ask_gate(method, available(i), settings[method.name], name) for i, name in enumerate(batch.names)
            ]
            for method in methods
        }
        configs = {
            method.name: config
            for method in methods
            if method.tunes
            and any(each.is_open for each in gates[method.name])
            and (config := method.tuning(family, dataset)) is not None
        }
        wanted: dict[TuningConfig, set[int]] = {}
        for name, config in configs.items():
            wanted.setdefault(config, set()).update(i for i, each in enumerate(gates[name]) if each.is_open)
        all_views = any(method.needs_adapted_views for method in methods)
        tuned = self._tune(views, wanted, starts, initial, batch.names, keep_texts=all_views)
        answers = []
        for method in methods:
            own = gates[method.name]
            adapted = tuned[configs[method.name]] if method.name in configs else initial
            if method.adapt != CONTEXT:
                state = self._state.setdefault(method.name, {})
                logits = partial(_logits, self._text, views)
                numbers = settings[method.name]
                adapted = adapt_by_function(method, initial, available, logits, numbers, own, batch.names, state)
            if method.gate != NONE:
                adapted = gated(adapted, initial, own)
            answers.append(
                finish(
                    method,
                    adapted,
                    initial,
                    tower=self._family,
                    official=self._task.official_precision,
                    available=available,
                    settings=settings[method.name],
                    names=batch.names,
                )
            )
        return answers

    def _initial(self, views: Tensor, starts: Tensor | None) -> Adapted:
        text = self._text
        if starts is None:
            shared = text.text_features.expand(len(views), -1, -1)
            rows = partial(_rows, text, views, shared)
            extras = {"mean_cosine": mean_cosine(text.class_features(text.text_features)).expand(len(views))}
            return Adapted.at_init(text.zero_shot(views), rows, extras, partial(_class_features, text, shared))

        def at_start(clean: Tensor, contexts: Tensor) -> Tensor:
            return logits_and_extras(text, list(clean), text.encoder.encode(contexts), keep_texts=True)

        found = in_passes(at_start, views[:, :1], starts, size=text.contexts_per_pass)
        logits, cosines, own = split_extras(text, found)
        assert own is not None
        return Adapted.at_init(
            logits, partial(_rows, text, views, own), {"mean_cosine": cosines}, partial(_class_features, text, own)
        )

    def _tune(
        self,
        views: Tensor,
        wanted: Mapping[TuningConfig, Collection[int]],
        starts: Tensor | None,
        initial: Adapted,
        names: Sequence[str],
        *,
        keep_texts: bool,
    ) -> Mapping[TuningConfig, Adapted]:
        """Images as each config tunes them; those that it is not ``wanted`` for stay as they are at the init."""
        text = self._text
        stores = self._stores(views, starts, several=len({frozenset(each) for each in wanted.values()}) > 1)
        found = {}
        for images in dict.fromkeys(tuple(sorted(each)) for each in wanted.values()):
            configs = [config for config, each in wanted.items() if tuple(sorted(each)) == images]
            everything = len(images) == len(views)
            chosen = views if everything else views[list(images)]
            own = starts if everything or starts is None else starts[list(images)]
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

    def _stores(self, views: Tensor, starts: Tensor | None, *, several: bool) -> Sequence[GradientStore] | None:
        """Where gradients at the init are kept: on disk, or for the moment if ``several`` calls share them."""
        if self._cache is not None and starts is None and self._gradient_size <= views[0].numel():
            return [CachedGradients(self._cache, self._text, each) for each in views]
        return [HeldGradients() for _ in views] if several and starts is None else None

    def _available(self, views: Tensor, initial: Adapted, i: int) -> Available:
        text = self._text
        return {
            "features": lambda: views[i],
            "text_features": partial(initial.text_features, i),
            "logit_scale": lambda: text.logit_scale,
            "zero_shot": partial(initial.view_logits, i),
        }


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
        self._backbone, self._context, self._condition = backbone, context, condition

    def _starts(self, batch: Batch) -> Tensor | None:
        recipe = ViewRecipe(n_views=1)
        if self._condition == "raw":
            pixels = batch.pixels(recipe, self._backbone)
            return self._context.starts(self._backbone.encode_pixels(pixels[:, 0], unit=False))
        return super()._starts(batch)

    def _starts_of(self, clean: Tensor) -> Tensor | None:
        return self._context.starts(clean)


def _rows(text: TextSide, views: Tensor, text_features: Tensor, i: int) -> Tensor:
    """Logits (V, C) of all views of image ``i``, of (B, V, D) and (B, C, D)."""
    return text.logits(views[i], text_features[i])


def _class_features(text: TextSide, text_features: Tensor, i: int) -> Tensor:
    """Text features (C, D) of image ``i``, of (B, T, D) of all texts."""
    return text.class_features(text_features[i])


def _logits(text: TextSide, views: Tensor, i: int, text_features: Tensor) -> Tensor:
    """Logits (V, C) of all views of image ``i`` under text features (C, D)."""
    return text.logits(views[i], text_features)
