"""Prediction path of a batch through the methods that share a prompt.

    features → zero-shot logits of the views → gate → adapt → calibrate → aggregate → output

Towers, gradients and logits are computed on the backbone's device for the whole batch; after one copy to the host,
plain functions finish image by image (:mod:`otpt.methods.finish`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage
from otpt.methods.finish import Extras, Output, call_function, finish
from otpt.methods.method import Method, TuningConfig, recipe_for
from otpt.methods.state import PromptState, Scores, mean_cosine
from otpt.methods.tuner import failed_on, tune
from otpt.objectives import select_fraction
from otpt.registry import ADAPTATIONS, CONTEXT, FIRST_PASS, GATES, INPUTS, NONE, PROMPT_STATE, STATE, STREAM
from otpt.settings import Settings
from otpt.threads import in_threads
from otpt.transfers import to_host
from otpt.views import ViewRecipe, make_views

GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 for zero-shot."""
AGREEING = 0.25
"""Fraction of most confident views that must agree with the clean view to stop a view budget early."""

Gates = Mapping[str, Sequence[tuple[bool, Extras]]]
"""Decision and extras of each image, by gated method."""
Tuned = Mapping[TuningConfig, tuple[Scores, Mapping[int, int]]]
"""Scores of the tuned images and their rows by batch index, by config."""


@dataclass(frozen=True)
class Batch:
    """Batch of B images with the features of all required views; ``seed`` determines the views."""

    images: Sequence[EncodedImage]
    seed: int

    def features(self, recipe: ViewRecipe) -> Tensor:
        """Return the unit features (B, V, D) of the views of a recipe, the clean view first."""
        return torch.stack([image.features[recipe.kind][: recipe.n_views] for image in self.images])

    def clean_features(self) -> Tensor:
        """Return the unit features (B, D) of the clean views."""
        return torch.stack([next(iter(image.features.values()))[0] for image in self.images])

    def pixels(self, recipe: ViewRecipe, backbone: Backbone) -> Tensor:
        """Return normalised pixels (B, V, 3, S, S) for prompts in the image tower."""
        dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
        made = []
        for encoded in self.images:
            image, digest = encoded.open()
            name = digest if encoded.task.image_id is None else encoded.task.image_id
            views = make_views(image, recipe, backbone.preprocessing, seed=self.seed, image_id=name, dtype=dtype)
            made.append(torch.from_numpy(views))
        return torch.stack(made)


def is_enough(zero_shot: Tensor) -> bool:
    """Return whether the most confident quarter of the views agrees with the clean view; logits (n, C).

    The decision depends only on the image and the seed, so the number of views is the same for any batch, order, worker
    and set of methods.
    """
    labels = zero_shot.argmax(dim=1)
    return bool((labels[select_fraction(zero_shot, AGREEING)] == labels[0]).all())


class PromptGroup:
    """Methods under one prompt state; see :class:`otpt.methods.inits.Group`.

    Attributes:
        recipes: the views of each method.
        constants: function arguments shared by all images.
        cache: of gradients at the init.
    """

    def __init__(
        self, prompt: str, methods: tuple[Method, ...], backbone: Any, state: PromptState, settings: Settings
    ) -> None:
        self.prompt, self.methods, self.state = prompt, methods, state
        recipes = [recipe_for(settings, method) for method in methods]
        self.recipes = [recipe for recipe in recipes if recipe is not None]
        self.cache: FeatureCache | None = None
        self._tower, self._official = backbone.family, settings.official_precision
        self.constants: dict[str, Any] = {"logit_scale": state.logit_scale, PROMPT_STATE: state}
        if settings.stream_length is not None:
            self.constants["stream_length"] = settings.stream_length
        self._settings = {method.name: method.settings_for(*settings.place) for method in methods}
        configs = {method.name: method.tuning(*settings.place) for method in methods if method.tunes}
        self._configs = {name: config for name, config in configs.items() if config is not None}
        self._stream_state: dict[str, dict[str, Any]] = {}
        self._in_order = any(method.scope == STREAM for method in methods)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of all images, method by method; images with the same number of views go together."""
        found: dict[tuple[str, int], Output] = {}
        for recipe in dict.fromkeys(self.recipes):
            methods = [method for method, own in zip(self.methods, self.recipes, strict=True) if own == recipe]
            counts = [recipe.n_views] * len(batch.images)
            if recipe.rounds:
                counts = [self.views_needed(recipe, image.features.get(recipe.kind)) for image in batch.images]
            for count in dict.fromkeys(counts):
                indices = [i for i, own in enumerate(counts) if own == count]
                part = Batch([batch.images[i] for i in indices], batch.seed)
                seen = recipe if count == recipe.n_views else recipe.of(count)
                extras = {"views": float(count)} if recipe.rounds else {}
                for i, outputs in zip(indices, self._predict(methods, seen, part, extras), strict=True):
                    found |= {(method.name, i): output for method, output in zip(methods, outputs, strict=True)}
        return [[found[method.name, i] for i in range(len(batch.images))] for method in self.methods]

    def views_needed(self, recipe: ViewRecipe, features: Tensor | None) -> int:
        """Return the number of views required for an image, given ``features`` (n, D) of its first views.

        Each round uses only its own views, since a product with more rows may round differently.
        """
        if features is None:
            return recipe.n_views
        starts = self.state.starts_of(features[:1])
        for count in recipe.rounds:
            if count <= len(features):
                zero_shot = self.state.initial(features[None, :count], starts).view_logits
                assert zero_shot is not None
                if is_enough(zero_shot[0]):
                    return count
        return recipe.n_views

    def _predict(
        self, methods: Sequence[Method], recipe: ViewRecipe, batch: Batch, extras: Extras
    ) -> list[list[Output]]:
        """Return the outputs of images that need the same views: image by image, one per method."""
        names = [str(image.task.key) for image in batch.images]
        views, starts = self.state.inputs(batch, recipe)
        initial = on_device = self.state.initial(views, starts)
        gates: dict[str, list[tuple[bool, Extras]]] = {}
        for method in (each for each in methods if each.gate != NONE):
            if not gates:
                (initial,) = scores_to_host([initial])
            gate, settings = GATES[method.gate], self._settings[method.name]
            gates[method.name] = [
                call_function(gate, "gate", self._available(initial.image(i)), settings, name, None)
                for i, name in enumerate(names)
            ]
        tuned = self._tune(methods, gates, views, starts, on_device, names)
        initial, *scores = scores_to_host([initial, *(scores for scores, _ in tuned.values())])
        tuned = {config: (own, tuned[config][1]) for config, own in zip(tuned, scores, strict=True)}

        def finish_image(i: int) -> list[Output]:
            before, outputs = initial.image(i), []
            given = {**self._available(before), INPUTS: views[i], FIRST_PASS: batch.images[i].task.first_pass}
            for method in methods:
                is_open, more = gates[method.name][i] if method.name in gates else (True, {})
                now = before
                if is_open:
                    now, own = self._adapt(method, before, given, tuned, i, names[i])
                    more = {**own, **more}
                if method.gate != NONE:
                    more = {**more, GATED: float(is_open)}
                options = {"tower": self._tower, "official": self._official, "name": names[i]}
                settings = self._settings[method.name]
                outputs.append(finish(method, before, now, given, settings, extras={**extras, **more}, **options))
            return outputs

        if self._in_order or len(names) == 1:
            return [finish_image(i) for i in range(len(names))]
        return in_threads(finish_image, range(len(names)))

    def _available(self, scores: Scores) -> dict[str, Any]:
        """Return the function arguments for one image under the initial prompt."""
        assert scores.features is not None
        assert scores.view_logits is not None
        return {
            **self.constants,
            "features": scores.features[0],
            "text_features": scores.text_features[0],
            "zero_shot": scores.view_logits[0],
        }

    def _tune(
        self,
        methods: Sequence[Method],
        gates: Gates,
        views: Tensor,
        starts: Tensor | None,
        initial: Scores,
        names: Sequence[str],
    ) -> Tuned:
        """Tune each distinct config once, on the images for which a gate of its methods is open."""
        all_views = any(method.needs_adapted_views for method in methods)
        wanted: dict[tuple[int, ...], list[TuningConfig]] = {}
        for config in dict.fromkeys(self._configs.values()):
            own = [gates.get(method.name) for method in methods if self._configs.get(method.name) == config]
            images = tuple(i for i in range(len(views)) if any(gate is None or gate[i][0] for gate in own))
            if images:
                wanted.setdefault(images, []).append(config)
        found: dict[TuningConfig, tuple[Scores, Mapping[int, int]]] = {}
        for images, configs in wanted.items():
            assert initial.view_logits is not None
            try:
                tuned = tune(
                    self.state,
                    _rows(views, images),
                    configs,
                    zero_shot=_rows(initial.view_logits, images),
                    starts=None if starts is None else _rows(starts, images),
                    cache=self.cache,
                    all_views=all_views,
                )
            except OtptError as error:
                raise failed_on(error, [names[i] for i in images], configs) from None
            at = {image: row for row, image in enumerate(images)}
            found |= {config: (scores, at) for config, scores in tuned.items()}
        return found

    def _adapt(
        self, method: Method, before: Scores, available: Mapping[str, Any], tuned: Tuned, i: int, name: str
    ) -> tuple[Scores, Extras]:
        """Adapt image ``i`` of the batch by context steps or by a function; return its scores and extras."""
        if method.adapt == CONTEXT:
            if not method.tunes:
                return before, {}
            scores, rows = tuned[self._configs[method.name]]
            return scores.image(rows[i]), {}
        value = ADAPTATIONS[method.adapt]
        carried = self._stream_state.setdefault(method.name, {})
        given = {**available, "logits": available["zero_shot"], STATE: carried}
        shape = tuple(available["text_features" if value.gives_texts else "zero_shot"].shape)
        found, extras = call_function(value, "adaptation", given, self._settings[method.name], name, shape)
        if not value.gives_texts:
            return replace(before, logits=found[:1], view_logits=found[None]), extras
        logits = self.state.logits(available["features"], found)
        texts = {"text_features": found[None], "mean_cosine": mean_cosine(found)[None]}
        return replace(before, logits=logits[:1], view_logits=logits[None], **texts), extras


def scores_to_host(scores: Sequence[Scores]) -> list[Scores]:
    """Move all tensors to the host in one copy."""
    fields = [{name: each for name, each in vars(own).items() if each is not None} for own in scores]
    found = iter(to_host([each for own in fields for each in own.values()]))
    return [Scores(**{name: next(found) for name in own}) for own in fields]


def _rows(tensor: Tensor, images: Sequence[int]) -> Tensor:
    """Stack rows of (B, …) without indexing by a list, which would synchronise with the device."""
    return tensor if len(images) == len(tensor) else torch.stack([tensor[i] for i in images])
