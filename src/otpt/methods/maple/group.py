"""MaPLe among the methods: prompts in both towers, so that pixels go through the image tower again for each image."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from otpt.backbones import Backbone
from otpt.methods.axes import NONE
from otpt.methods.batch import Batch
from otpt.methods.maple.two_tower import TwoTowerSide, TwoTowerTuned
from otpt.methods.method import CONTEXT, Method
from otpt.methods.output import Adapted, Output
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.running.calling import naming_images
from otpt.methods.running.finish import finish
from otpt.methods.running.hosting import Seen, adapts_on_host, available_of, initial_on_host, needs_after
from otpt.methods.running.own_functions import adapt_by_function, ask_gate, gated
from otpt.methods.task import Task
from otpt.prompts.learned import MaplePrompts
from otpt.transfers import Steps, join
from otpt.views import ViewRecipe


class MapleGroup:
    """Methods that start from MaPLe's prompts; see :class:`otpt.methods.running.groups.Group`."""

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

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`."""
        found: dict[str, list[Output]] = {}
        for recipe, methods in self._recipes.items():
            pixels = batch.pixels(recipe, self._backbone)
            images = [self._image(methods, own, name) for own, name in zip(pixels, batch.names, strict=True)]
            outputs = yield from join(images)
            found |= {method.name: [each[i] for each in outputs] for i, method in enumerate(methods)}
        return [found[method.name] for method in self.methods]

    def _configs(self, methods: list[Method]) -> dict[str, TuningConfig]:
        """Of the methods that tune, by name."""
        configs = {
            method.name: method.tuning(self._task.family, self._task.dataset) for method in methods if method.tunes
        }
        return {name: config for name, config in configs.items() if config is not None}

    def _image(self, methods: list[Method], pixels: Tensor, name: str) -> Steps[list[Output]]:
        """Pixels (V, 3, S, S) of one image → an output per method."""
        start = self._side.at_init(pixels)
        at_init = _seen(start)
        family, dataset = self._task.family, self._task.dataset
        settings = {method.name: method.settings_for(family, dataset) for method in methods}
        initial = yield from initial_on_host(at_init, methods)
        scale = self._backbone.logit_scale
        available = available_of(initial, initial, scale, 0)
        gates = {method.name: [ask_gate(method, available, settings[method.name], name)] for method in methods}
        configs = {key: config for key, config in self._configs(methods).items() if gates[key][0].is_open}
        with naming_images([name], list(configs.values())):
            tuned = {key: _seen(each) for key, each in self._side.tune(start, list(configs.values())).items()}
        adapted: dict[str, Seen] = {}
        for method in methods:
            if method.adapt != CONTEXT:
                own = initial if adapts_on_host(method) else at_init
                made = adapt_by_function(
                    method,
                    own.adapted,
                    partial(available_of, own, own, scale),
                    partial(self._logits, own),
                    settings[method.name],
                    gates[method.name],
                    [name],
                    self._state.setdefault(method.name, {}),
                )
                adapted[method.name] = Seen(made, own.features)
            elif method.name in configs:
                adapted[method.name] = tuned[configs[method.name]]
        after = needs_after(methods)
        distinct = {id(each): each for each in adapted.values()}
        initial, *copies = yield from join([each.on_host(after) for each in (initial, *distinct.values())])
        on_host = dict(zip(distinct, copies, strict=True))
        outputs = []
        for method in methods:
            found = on_host[id(adapted[method.name])] if method.name in adapted else initial
            logits = found.adapted
            if method.gate != NONE:
                logits = gated(logits, initial.adapted, gates[method.name])
            outputs += finish(
                method,
                logits,
                initial.adapted,
                tower=self._backbone.family,
                official=self._task.official_precision,
                available=partial(available_of, initial, found, scale),
                settings=settings[method.name],
                names=[name],
            )
        return outputs

    def _logits(self, seen: Seen, i: int, text_features: Tensor) -> Tensor:
        return self._side.logits(seen.features(i), text_features)


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


def _seen(found: TwoTowerTuned) -> Seen:
    """The one image of a batch."""
    adapted = Adapted(
        found.logits,
        lambda _: found.rows,
        found.skipped[None],
        {"mean_cosine": found.mean_cosine},
        lambda _: found.text_features,
    )
    return Seen(adapted, lambda _: found.features)
