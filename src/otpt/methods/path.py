"""Prediction path of a batch through the methods that share a prompt.

    features → zero-shot logits of the views → gate → adapt → calibrate → aggregate → output

Towers, gradients and logits are computed on the backbone's device for the whole batch; after one copy to the host,
each image goes through the stages of each method (:mod:`otpt.methods.stages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage
from otpt.methods.batch import Batch
from otpt.methods.method import Methods, TuningConfig
from otpt.methods.protocol import Protocol
from otpt.methods.stages import GATED, Extras, ImageState, Output, Stages
from otpt.methods.state import PromptState, Scores
from otpt.methods.tuner import failed_on, tune
from otpt.objectives import select_fraction
from otpt.registry import CONTEXT, FIRST_PASS, INPUTS, NONE, PROMPT_STATE, STREAM
from otpt.threads import in_threads
from otpt.transfers import to_host
from otpt.views import ViewRecipe

AGREEING = 0.25
"""Fraction of most confident views that must agree with the clean view to stop a view budget early."""


def is_enough(zero_shot: Tensor) -> bool:
    """Return whether the most confident quarter of the views agrees with the clean view; logits (n, C).

    The decision depends only on the image and the seed, so the number of views is the same for any batch, order, worker
    and set of methods.
    """
    labels = zero_shot.argmax(dim=1)
    return bool((labels[select_fraction(zero_shot, AGREEING)] == labels[0]).all())


@dataclass(frozen=True)
class TunedImages:
    """Scores of the images tuned by one config.

    Attributes:
        scores: scores of the tuned images.
        rows: row of ``scores`` by index of the image in the batch.
    """

    scores: Scores
    rows: Mapping[int, int]


class PromptGroup:
    """Methods under one prompt state; see :class:`otpt.methods.preparation.Group`.

    Args:
        prompt: name of the prompt in the results.
        methods: methods that share the prompt state.
        state: text features under the initial prompt.
        protocol: views, published numbers and precision.
        tower: kind of the backbone's image tower.

    Attributes:
        recipes: the views of each method.
        constants: function arguments shared by all images.
        cache: of gradients at the init.
    """

    def __init__(self, prompt: str, methods: Methods, state: PromptState, protocol: Protocol, tower: str) -> None:
        self.prompt = prompt
        self.methods = methods
        self.state = state
        recipes = [protocol.recipe_for(method) for method in methods]
        self.recipes = [recipe for recipe in recipes if recipe is not None]
        self.cache: FeatureCache | None = None
        self.constants: dict[str, object] = {"logit_scale": state.logit_scale, PROMPT_STATE: state}
        if protocol.stream_length is not None:
            self.constants["stream_length"] = protocol.stream_length
        self._stages_by_recipe: dict[ViewRecipe, list[Stages]] = {}
        for method, recipe in zip(methods, self.recipes, strict=True):
            stages = Stages(method, protocol, tower)
            self._stages_by_recipe.setdefault(recipe, []).append(stages)
        self._configs: dict[str, TuningConfig] = {}
        for method in methods:
            config = method.tuning(*protocol.place) if method.tunes else None
            if config is not None:
                self._configs[method.name] = config
        self._stream_states: dict[str, dict[str, object]] = {}
        self._in_order = any(method.scope == STREAM for method in methods)

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of all images, method by method; images with the same number of views go together."""
        outputs: dict[tuple[str, int], Output] = {}
        for recipe, stages in self._stages_by_recipe.items():
            counts = [recipe.n_views] * len(batch.images)
            if recipe.rounds:
                counts = [self.views_needed(recipe, image.features.get(recipe.kind)) for image in batch.images]
            for count in dict.fromkeys(counts):
                indices = [i for i, needed in enumerate(counts) if needed == count]
                part = Batch([batch.images[i] for i in indices], batch.seed)
                views, starts = self.state.inputs(part, recipe if count == recipe.n_views else recipe.of(count))
                extras = {"views": float(count)} if recipe.rounds else {}
                rows = self._predict(stages, views, starts, part.images, extras)
                for i, row in zip(indices, rows, strict=True):
                    outputs |= {(stage.method.name, i): output for stage, output in zip(stages, row, strict=True)}
        return [[outputs[method.name, i] for i in range(len(batch.images))] for method in self.methods]

    def outputs_of_features(self, views: Tensor) -> list[Output]:
        """Return the outputs of one image given by its view features (1, V, D), method by method."""
        outputs: dict[str, Output] = {}
        for recipe, stages in self._stages_by_recipe.items():
            (row,) = self._predict(stages, views[:, : recipe.n_views], None, [None], {})
            outputs |= {stage.method.name: output for stage, output in zip(stages, row, strict=True)}
        return [outputs[method.name] for method in self.methods]

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
        self,
        stages: Sequence[Stages],
        views: Tensor,
        starts: Tensor | None,
        images: Sequence[EncodedImage[object] | None],
        extras: Extras,
    ) -> list[list[Output]]:
        """Return the outputs of images that need the same views: image by image, one per method."""
        names = ["image" if image is None else str(image.task.key) for image in images]
        on_device = initial = self.state.initial(views, starts)
        gates: dict[str, list[tuple[bool, Extras]]] = {}
        if any(stage.method.gate != NONE for stage in stages):
            (initial,) = scores_to_host([initial])
            states = [self._initial(initial.image(i), name) for i, name in enumerate(names)]
            for stage in stages:
                if stage.method.gate != NONE:
                    gates[stage.method.name] = [stage.gate(state) for state in states]
        tuned = self._tune(stages, gates, views, starts, on_device, names)
        initial, *scores = scores_to_host([initial, *(each.scores for each in tuned.values())])
        tuned = {
            config: TunedImages(on_host, each.rows)
            for (config, each), on_host in zip(tuned.items(), scores, strict=True)
        }

        def finish_image(i: int) -> list[Output]:
            image = images[i]
            of_image = {INPUTS: views[i], FIRST_PASS: image is not None and image.task.first_pass}
            start = self._initial(initial.image(i), names[i], of_image)
            outputs = []
            for stage in stages:
                name = stage.method.name
                is_open, from_gate = gates[name][i] if name in gates else (True, {})
                state = self._adapt(stage, start, tuned, i) if is_open else start
                gated = {} if stage.method.gate == NONE else {GATED: float(is_open)}
                state = replace(state, extras={**extras, **state.extras, **from_gate, **gated})
                state = stage.calibrate(state)
                outputs.append(stage.aggregate(state))
            return outputs

        if self._in_order or len(names) == 1:
            return [finish_image(i) for i in range(len(names))]
        return in_threads(finish_image, range(len(names)))

    def _initial(self, scores: Scores, name: str, of_image: Mapping[str, object] | None = None) -> ImageState:
        """Return the state of one image under the initial prompt; ``of_image`` are further function arguments."""
        assert scores.features is not None
        assert scores.view_logits is not None
        arguments = {
            **self.constants,
            "features": scores.features[0],
            "text_features": scores.text_features[0],
            "zero_shot": scores.view_logits[0],
            **(of_image or {}),
        }
        return ImageState(name, scores, scores, arguments)

    def _adapt(
        self, stage: Stages, state: ImageState, tuned: Mapping[TuningConfig, TunedImages], index: int
    ) -> ImageState:
        """Adapt image ``index`` of the batch by context steps or by a function."""
        method = stage.method
        if method.adapt != CONTEXT:
            return stage.adapt(state, self.state, self._stream_states.setdefault(method.name, {}))
        if not method.tunes:
            return state
        images = tuned[self._configs[method.name]]
        return replace(state, scores=images.scores.image(images.rows[index]))

    def _tune(
        self,
        stages: Sequence[Stages],
        gates: Mapping[str, Sequence[tuple[bool, Extras]]],
        views: Tensor,
        starts: Tensor | None,
        initial: Scores,
        names: Sequence[str],
    ) -> dict[TuningConfig, TunedImages]:
        """Tune each distinct config once, on the images for which a gate of its methods is open."""
        all_views = any(stage.method.needs_adapted_views for stage in stages)
        wanted: dict[tuple[int, ...], list[TuningConfig]] = {}
        for config in dict.fromkeys(self._configs.values()):
            names_of_config = [s.method.name for s in stages if self._configs.get(s.method.name) == config]
            decisions = [gates.get(name) for name in names_of_config]
            images = tuple(i for i in range(len(views)) if any(gate is None or gate[i][0] for gate in decisions))
            if images:
                wanted.setdefault(images, []).append(config)
        tuned: dict[TuningConfig, TunedImages] = {}
        for images, configs in wanted.items():
            assert initial.view_logits is not None
            try:
                scores = tune(
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
            rows = {image: row for row, image in enumerate(images)}
            tuned |= {config: TunedImages(of_config, rows) for config, of_config in scores.items()}
        return tuned


def scores_to_host(scores: Sequence[Scores]) -> list[Scores]:
    """Move all tensors to the host in one copy."""
    tables = [each.tensors() for each in scores]
    on_host = iter(to_host([tensor for table in tables for tensor in table.values()]))
    return [Scores(**{name: next(on_host) for name in table}) for table in tables]


def _rows(tensor: Tensor, images: Sequence[int]) -> Tensor:
    """Stack rows of (B, …) without indexing by a list, which would synchronise with the device."""
    return tensor if len(images) == len(tensor) else torch.stack([tensor[i] for i in images])
