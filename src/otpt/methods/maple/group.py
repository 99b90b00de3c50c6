"""MaPLe among the methods: prompts in both towers, so that pixels go through the image tower again for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from otpt.backbones import Backbone
from otpt.methods.batch import Batch
from otpt.methods.maple.two_tower import TwoTowerSide, TwoTowerTuned
from otpt.methods.method import Method
from otpt.methods.output import Adapted, Output
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.running.adapting import AdaptingGroup
from otpt.methods.running.calling import naming_images
from otpt.methods.task import Task
from otpt.prompts.learned import MaplePrompts
from otpt.transfers import Steps, join
from otpt.views import ViewRecipe


class MapleGroup(AdaptingGroup):
    """Methods that start from MaPLe's prompts; see :class:`otpt.methods.running.groups.Group`."""

    prompt = "maple"

    def __init__(self, methods: tuple[Method, ...], backbone: Backbone, prompts: MaplePrompts, task: Task) -> None:
        self._backbone = backbone
        self._two_towers = TwoTowerSide(
            backbone,
            task.class_names,
            prompts,
            allow_duplicates=task.allow_duplicates,
            memory_budget=task.memory_budget,
        )
        super().__init__(methods, backbone.family, self._two_towers, task)
        self._recipes = _recipes(methods, task)

    @property
    def bytes_per_image(self) -> int:
        """See :class:`Group`."""
        family, dataset = self._task.family, self._task.dataset
        sizes = (
            self._two_towers.tower.graph_bytes(config.selected_count(recipe.n_views))
            for recipe, methods in self._recipes.items()
            for method in methods
            if method.tunes and (config := method.tuning(family, dataset)) is not None
        )
        return max(sizes, default=0)

    def steps(self, batch: Batch) -> Steps[list[list[Output]]]:
        """See :class:`Group`."""
        found: dict[str, list[Output]] = {}
        for recipe, methods in self._recipes.items():
            pixels = batch.pixels(recipe, self._backbone)
            images = [self._image(methods, own, name) for own, name in zip(pixels, batch.names, strict=True)]
            outputs = yield from join(images)
            found |= {method.name: [each[method.name][0] for each in outputs] for method in methods}
        return [found[method.name] for method in self.methods]

    def _image(self, methods: list[Method], pixels: Tensor, name: str) -> Steps[dict[str, list[Output]]]:
        """Pixels (V, 3, S, S) of one image → its outputs by method."""
        start = self._two_towers.at_init(pixels)
        return (yield from self._outputs(methods, _adapted(start), [name], partial(self._tune, start, name)))

    def _tune(
        self, start: TwoTowerTuned, name: str, wanted: Mapping[TuningConfig, Sequence[int]]
    ) -> Steps[Mapping[TuningConfig, Adapted]]:
        yield from ()  # nothing is needed on the host
        with naming_images([name], list(wanted)):
            tuned = self._two_towers.tune(start, list(wanted))
        return {config: _adapted(each) for config, each in tuned.items()}


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
    """The one image of a batch."""
    return Adapted(
        found.logits,
        lambda _: found.rows,
        found.skipped[None],
        {"mean_cosine": found.mean_cosine},
        lambda _: found.text_features,
        features=lambda _: found.features,
    )
