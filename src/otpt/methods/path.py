"""The path of a batch through the methods that share a prompt.

    features → zero-shot logits of the views → gate → adapt → calibrate → aggregate → output

Towers, gradients and logits are computed on the backbone's device, for the whole batch; then there is one copy to the
host, where plain functions finish image by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from otpt.calibration import BaseTexts
from otpt.features.cache import FeatureCache
from otpt.methods.batch import Batch
from otpt.methods.finish import Available, Extras, GateAnswer, ImageScores, call_function, call_gate, finish
from otpt.methods.method import Method, TuningConfig
from otpt.methods.output import Output
from otpt.methods.prompt_tuning.state import PromptState, Scores, mean_cosine
from otpt.methods.prompt_tuning.tuner import naming_images, tune
from otpt.objectives import select_fraction
from otpt.registry import ADAPTATIONS, CONTEXT, GATES, NONE, STATE, STREAM
from otpt.settings import Settings
from otpt.threads import in_threads
from otpt.transfers import to_host
from otpt.views import ViewRecipe

GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 if it kept zero-shot."""
AGREEING = 0.25
"""The fraction of the views, the most confident ones, that must have the clean view's label for a budget to end."""

Tuned = Mapping[TuningConfig, tuple[Scores, Mapping[int, int]]]
"""Scores of the tuned images by config, and which row of them an image of the batch has."""


def is_enough(zero_shot: Tensor) -> bool:
    """Whether the most confident quarter of n views, and at least one, have the clean view's label; logits (n, C).

    It depends on the image and the seed alone, so that the number of views does too: it is the same for any batch,
    order and worker, and whether the other views were encoded for another method or not.
    """
    labels = zero_shot.argmax(dim=1)
    return bool((labels[select_fraction(zero_shot, AGREEING)] == labels[0]).all())


class PromptGroup:
    """Methods under one prompt state; see :class:`otpt.methods.kinds.Group`.

    Args:
        recipes: the views of each method.
        tower: the backbone's kind of image tower, for published temperatures.
        base_texts: on the host, for calibrations of learned prompts that look at their base classes.
    """

    def __init__(
        self,
        prompt: str,
        methods: tuple[Method, ...],
        state: PromptState,
        settings: Settings,
        recipes: Sequence[ViewRecipe],
        *,
        tower: str,
        base_texts: BaseTexts | None = None,
    ) -> None:
        self.prompt, self.methods, self.state = prompt, methods, state
        self.recipes = recipes
        self.cache: FeatureCache | None = None
        """Where gradients at the init are stored."""
        self._tower, self._base_texts = tower, base_texts
        self._official = settings.official_precision
        place = (settings.family or "fine-grained", settings.dataset)
        self._settings = {method.name: method.settings_for(*place) for method in methods}
        self._configs = {method.name: method.tuning(*place) for method in methods if method.tunes}
        self._stream_state: dict[str, dict[str, Any]] = {}
        self._in_order = any(method.scope == STREAM for method in methods)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.kinds.Group`."""
        found: dict[str, dict[int, Output]] = {method.name: {} for method in self.methods}
        for recipe in dict.fromkeys(self.recipes):
            methods = [method for method, own in zip(self.methods, self.recipes, strict=True) if own == recipe]
            by_count: dict[int, list[int]] = {}
            for i, image in enumerate(batch.images):
                by_count.setdefault(self.views_needed(recipe, image.features.get(recipe.kind)), []).append(i)
            for count, images in by_count.items():
                extras = {"views": float(count)} if recipe.rounds else {}
                for i, outputs in zip(
                    images, self._outputs(methods, recipe.of(count), batch.part(images)), strict=True
                ):
                    for method, output in zip(methods, outputs, strict=True):
                        found[method.name][i] = replace(output, extras={**output.extras, **extras})
        return [[found[method.name][i] for i in range(len(batch))] for method in self.methods]

    def views_needed(self, recipe: ViewRecipe, features: Tensor | None) -> int:
        """The number of views that an image needs: the first round that is enough, or all.

        ``features`` (n, D) are those of its first views. A round is decided by its own views alone: a product with more
        rows may differ in the last bit, and a tie be decided in another way.
        """
        if features is None or not recipe.rounds:
            return recipe.n_views
        starts = self.state.starts_of(features[:1])
        for count in recipe.rounds:
            if count <= len(features):
                zero_shot = self.state.initial(features[None, :count], starts).view_logits
                assert zero_shot is not None
                if is_enough(zero_shot[0]):
                    return count
        return recipe.n_views

    def _outputs(self, methods: Sequence[Method], recipe: ViewRecipe, batch: Batch) -> list[list[Output]]:
        """The outputs of images that need the same views: image by image, one per method."""
        names, views, starts = batch.names, self.state.views(batch, recipe), self.state.starts(batch)
        initial = on_device = self.state.initial(views, starts)
        gates: dict[str, list[GateAnswer]] = {}
        if any(method.gate != NONE for method in methods):
            (initial,) = scores_to_host([initial])
            for method in methods:
                gates[method.name] = [
                    self._gate(method, image_scores(initial, i), each) for i, each in enumerate(names)
                ]
        tuned = self._tune(methods, gates, views, starts, on_device, names)
        initial, *scores = scores_to_host([initial, *(scores for scores, _ in tuned.values())])
        on_host = {config: (own, tuned[config][1]) for config, own in zip(tuned, scores, strict=True)}

        def finish_image(i: int) -> list[Output]:
            before = image_scores(initial, i)
            return [
                self._finish(method, before, i, gates[method.name][i] if gates else GateAnswer(), on_host, names[i])
                for method in methods
            ]

        if self._in_order:
            return [finish_image(i) for i in range(len(batch))]
        return in_threads(finish_image, range(len(batch)))

    def _available(self, before: ImageScores, now: ImageScores) -> Available:
        """What a function may ask for, of the initial prompt and of the views ``now``."""
        return {
            "features": lambda: before.features if now.features is None else now.features,
            "text_features": lambda: before.text_features,
            "logit_scale": lambda: self.state.logit_scale,
            "zero_shot": lambda: before.view_logits,
            "base_texts": lambda: self._base_texts,
        }

    def _gate(self, method: Method, before: ImageScores, name: str) -> GateAnswer:
        """Whether a method adapts an image."""
        if method.gate == NONE:
            return GateAnswer()
        return call_gate(GATES[method.gate], self._available(before, before), self._settings[method.name], name)

    def _tune(
        self,
        methods: Sequence[Method],
        gates: Mapping[str, Sequence[GateAnswer]],
        views: Tensor,
        starts: Tensor | None,
        initial: Scores,
        names: Sequence[str],
    ) -> Tuned:
        """Tune each distinct config once, on the images for which a gate of its methods is open."""
        wanted: dict[TuningConfig, set[int]] = {}
        all_views = any(method.needs_adapted_views for method in methods)
        for method in methods:
            config = self._configs.get(method.name)
            adapted = {i for i in range(len(views)) if not gates or gates[method.name][i].is_open}
            if config is not None and adapted:
                wanted.setdefault(config, set()).update(adapted)
        found: dict[TuningConfig, tuple[Scores, Mapping[int, int]]] = {}
        for images in dict.fromkeys(tuple(sorted(each)) for each in wanted.values()):
            configs = [config for config, each in wanted.items() if tuple(sorted(each)) == images]
            assert initial.view_logits is not None
            with naming_images([names[i] for i in images], configs):
                tuned = tune(
                    self.state,
                    _rows(views, images),
                    configs,
                    zero_shot=_rows(initial.view_logits, images),
                    starts=None if starts is None else _rows(starts, images),
                    cache=self.cache,
                    all_views=all_views,
                )
            at = {image: row for row, image in enumerate(images)}
            found |= {config: (scores, at) for config, scores in tuned.items()}
        return found

    def _finish(self, method: Method, before: ImageScores, i: int, gate: GateAnswer, tuned: Tuned, name: str) -> Output:
        """Adapt, calibrate and aggregate image ``i`` by a method."""
        now = before
        more: Extras = {}
        settings, config = self._settings[method.name], self._configs.get(method.name)
        if gate.is_open and method.adapt != CONTEXT:
            now, more = self._call_adaptation(method, before, settings, name)
        elif gate.is_open and config is not None:
            scores, at = tuned[config]
            now = image_scores(scores, at[i])
        extras = {"mean_cosine": now.mean_cosine, **more}
        if method.gate != NONE:
            extras |= {**gate.extras, GATED: float(gate.is_open)}
        return finish(
            method,
            now,
            before,
            self._available(before, now),
            settings,
            tower=self._tower,
            official=self._official,
            name=name,
            extras=extras,
        )

    def _call_adaptation(
        self, method: Method, before: ImageScores, settings: Mapping[str, float], name: str
    ) -> tuple[ImageScores, Extras]:
        """Adapt an image by a function, which gives logits of the views or text features."""
        value = ADAPTATIONS[method.adapt]
        carried = self._stream_state.setdefault(method.name, {})
        available: Available = {
            **self._available(before, before),
            "logits": lambda: before.view_logits,
            STATE: lambda: carried,
        }
        assert before.view_logits is not None
        assert before.text_features is not None
        shape = before.text_features.shape if value.gives_texts else before.view_logits.shape
        found, extras = call_function(value, "adaptation", available, settings, tuple(shape), name)
        if not value.gives_texts:
            return before._replace(logits=found[:1], view_logits=found), extras
        assert before.features is not None
        logits = self.state.logits(before.features, found)
        cosine = float(mean_cosine(found))
        return before._replace(logits=logits[:1], view_logits=logits, text_features=found, mean_cosine=cosine), extras


def scores_to_host(scores: Sequence[Scores]) -> list[Scores]:
    """All tensors on the host, by one copy."""
    fields = [{name: each for name, each in vars(own).items() if each is not None} for own in scores]
    found = iter(to_host([each for own in fields for each in own.values()]))
    return [Scores(**{name: next(found) for name in own}) for own in fields]


def image_scores(scores: Scores, i: int) -> ImageScores:
    """Image ``i`` of a batch on the host."""
    texts = scores.text_features
    return ImageScores(
        scores.logits[i : i + 1],
        None if scores.view_logits is None else scores.view_logits[i],
        None if scores.features is None else scores.features[i],
        texts[i if len(texts) > 1 else 0],
        float(scores.mean_cosine[i]),
        bool(scores.skipped[i]),
    )


def _rows(tensor: Tensor, images: Sequence[int]) -> Tensor:
    """Rows of (B, …), stacked one by one: a list of indices would be copied to the device and waited for."""
    return tensor if len(images) == len(tensor) else torch.stack([tensor[i] for i in images])
