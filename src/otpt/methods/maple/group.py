"""MaPLe among the methods: prompts in both towers, so that pixels go through the image tower again for each image."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.methods.axes import NONE
from otpt.methods.batch import Batch
from otpt.methods.calling import Available, naming_images
from otpt.methods.finish import finish
from otpt.methods.maple.two_tower import TwoTowerSide, TwoTowerTuned
from otpt.methods.method import CONTEXT, Method
from otpt.methods.output import Adapted, Output
from otpt.methods.own_functions import adapt_by_function, ask_gate, gated
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.task import Task
from otpt.prompts.learned import MaplePrompts
from otpt.views import ViewRecipe


class MapleGroup:
    """Methods that start from MaPLe's prompts; see :class:`otpt.methods.groups.Group`."""

    prompt = "maple"

    def __init__(self, methods: tuple[Method, ...], backbone: Backbone, prompts: MaplePrompts, task: Task) -> None:
        self.methods = methods
        self._backbone, self._task = backbone, task
        self._side = TwoTowerSide(
            backbone,
            task.class_names,
            prompts,
            allow_duplicates=task.allow_duplicates,
            memory_budget=task.memory_budget,
        )
        self._recipes = _recipes(methods, task)
        self._state: dict[str, dict[str, object]] = {}  # of stream methods

    @property
    def graph_bytes(self) -> int:
        """See :class:`Group`."""
        return self._side.linearisation.graph_bytes

    @property
    def bytes_per_image(self) -> int:
        """See :class:`Group`."""
        sizes = (
            self._side.tower.graph_bytes(config.selected_count(recipe.n_views))
            for recipe, methods in self._recipes.items()
            for config in self._configs(methods).values()
        )
        return max(sizes, default=0)

    def release(self) -> int:
        """See :class:`Group`."""
        size = self.graph_bytes
        self._side.linearisation.release()
        return size or self._task.memory_budget

    def predict(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`."""
        found: dict[str, list[Output]] = {method.name: [] for method in self.methods}
        for recipe, methods in self._recipes.items():
            for i, pixels in enumerate(batch.pixels(recipe, self._backbone)):
                for method, output in zip(methods, self._predict(methods, pixels, batch.names[i]), strict=True):
                    found[method.name].append(output)
        return [found[method.name] for method in self.methods]

    def _configs(self, methods: list[Method]) -> dict[str, TuningConfig]:
        """Of the methods that tune, by name."""
        configs = {
            method.name: method.tuning(self._task.family, self._task.dataset) for method in methods if method.tunes
        }
        return {name: config for name, config in configs.items() if config is not None}

    def _predict(self, methods: list[Method], pixels: Tensor, name: str) -> list[Output]:
        """Pixels (V, 3, S, S) of one image → an output per method."""
        initial = self._side.at_init(pixels)
        at_init = _adapted(initial)
        available = partial(self._available, initial, initial)
        family, dataset = self._task.family, self._task.dataset
        settings = {method.name: method.settings_for(family, dataset) for method in methods}
        gates = {method.name: [ask_gate(method, available(0), settings[method.name], name)] for method in methods}
        configs = {key: config for key, config in self._configs(methods).items() if gates[key][0].is_open}
        with naming_images([name], list(configs.values())):
            tuned = self._side.tune(initial, list(configs.values()))
        outputs = []
        for method in methods:
            found = tuned[configs[method.name]] if method.name in configs else initial
            adapted, own = _adapted(found), gates[method.name]
            if method.adapt != CONTEXT:
                state = self._state.setdefault(method.name, {})
                numbers = settings[method.name]
                adapted = adapt_by_function(
                    method, at_init, available, partial(self._logits, initial), numbers, own, [name], state
                )
            if method.gate != NONE:
                adapted = gated(adapted, at_init, own)
            outputs += finish(
                method,
                adapted,
                at_init,
                tower=self._backbone.family,
                official=self._task.official_precision,
                available=partial(self._available, initial, found),
                settings=settings[method.name],
                names=[name],
            )
        return outputs

    def _logits(self, initial: TwoTowerTuned, _: int, text_features: Tensor) -> Tensor:
        return self._side.logits(initial.features, text_features)

    def _available(self, initial: TwoTowerTuned, now: TwoTowerTuned, _: int) -> Available:
        """``now``: the image as it was tuned, whose features differ from those at the init."""
        return {
            "features": lambda: now.features,
            "text_features": lambda: initial.text_features,
            "logit_scale": lambda: self._backbone.logit_scale,
            "zero_shot": lambda: initial.rows,
        }


def _recipes(methods: tuple[Method, ...], task: Task) -> dict[ViewRecipe, list[Method]]:
    """The methods by the views that they need; those that need the clean view alone go with others, if any."""
    found: dict[ViewRecipe, list[Method]] = {}
    last = []
    for method in methods:
        recipe = task.recipe_for(method)
        assert recipe is not None
        if recipe.n_views == 1 and not method.tunes:
            last.append((recipe, method))
        else:
            found.setdefault(recipe, []).append(method)
    for recipe, method in last:
        found.setdefault(next(iter(found), recipe), []).append(method)
    return found


def _adapted(found: TwoTowerTuned) -> Adapted:
    skipped = torch.tensor([found.skipped])
    return Adapted(
        found.logits,
        lambda _: found.rows,
        skipped,
        {"mean_cosine": found.mean_cosine},
        lambda _: found.text_features,
    )
