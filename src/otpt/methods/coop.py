"""CoOp and CoCoOp: contexts learned from a few labelled images and read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from otpt.backbones import Backbone
from otpt.calibration import BaseTexts
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.inits import learned_facts, learned_prompt, text_group, text_state
from otpt.methods.method import INITS, Kind, Method, Methods
from otpt.methods.path import Batch, PromptGroup
from otpt.methods.state import PromptState
from otpt.prompts import DEFAULT_PROMPTS, tokenize_prompts
from otpt.prompts.learned import CocoopContext, CoopContext
from otpt.registry import CALIBRATIONS
from otpt.settings import Settings
from otpt.views import ViewRecipe


def _coop(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    learned = learned_prompt(settings, CoopContext, methods)
    group = text_group(learned.kind, backbone, settings, learned.prompt(), methods)
    base = _base_classes(learned, methods)
    if base is not None:
        places = (settings, settings.replace(classes=base))
        prompts = ((settings.prompts or DEFAULT_PROMPTS)[0], learned.prompt())
        found = [text_state(backbone, place, prompt, ()) for place in places for prompt in prompts]
        group.constants["base_texts"] = BaseTexts(*(each.text_features.cpu() for each in found))
    return [group]


def _check_coop(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    learned = learned_prompt(settings, CoopContext, methods)
    _base_classes(learned, methods)
    tokenize_prompts(backbone.text, settings.classes, learned.prompt())


def _base_classes(learned: CoopContext, methods: Sequence[Method]) -> tuple[str, ...] | None:
    """Return the classes that a context was learned on, or None if no method needs them."""
    asks = next((each.name for each in methods if "base_texts" in CALIBRATIONS[each.calibrate].parameters), None)
    if asks is None:
        return None
    if learned.class_names is None:
        raise OtptError(
            f"Method {asks!r} needs the classes that the context was learned on, but its file does not name them; make "
            "one with 'otpt train coop', or in Python give CoopContext(vectors, class_names)."
        )
    return learned.class_names


INITS[CoopContext.kind] = Kind(_coop, _check_coop, facts=learned_facts, uses="contexts", base_classes=True)


class ConditionalState(PromptState):
    """CoCoOp: each image has its own initial context, ctx + net(x) of its feature x.

    ``raw`` feeds the tower's feature before normalisation, as TPT's code does.
    """

    def __init__(self, *args: Any, context: CocoopContext, model: Backbone, raw: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self._backbone, self._raw = model, raw
        self._context = context.to(model.device, model.dtype)

    def inputs(self, batch: Batch, recipe: ViewRecipe) -> tuple[Tensor, Tensor | None]:
        """See :class:`PromptState`."""
        clean = batch.clean_features()
        if self._raw:
            pixels = batch.pixels(ViewRecipe(n_views=1), self._backbone)[:, 0]
            clean = self._backbone.encode_pixels(pixels, chunk=self._backbone.chunk, unit=False)
        return batch.features(recipe), self._context.starts(clean)

    def starts_of(self, clean: Tensor) -> Tensor | None:
        """See :class:`PromptState`."""
        return self._context.starts(clean)


def _cocoop(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    learned = learned_prompt(settings, CocoopContext, methods)
    learned.check_fits(backbone.embed_dim)
    found = []
    for condition in dict.fromkeys(method.condition for method in methods):
        own = tuple(method for method in methods if method.condition == condition)
        more = {"kind": ConditionalState, "context": learned, "model": backbone, "raw": condition == "raw"}
        # images have different contexts, so there is no shared graph to build
        state = text_state(backbone, settings, learned.prompt(), (), **more)
        found.append(PromptGroup(learned.kind, own, backbone, state, settings))
    return found


def _check_cocoop(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    learned = learned_prompt(settings, CocoopContext, methods)
    learned.check_fits(backbone.embed_dim)
    tokenize_prompts(backbone.text, settings.classes, learned.prompt())


INITS[CocoopContext.kind] = Kind(
    _cocoop,
    _check_cocoop,
    facts=learned_facts,
    needs_image=lambda method: method.condition == "raw",
    uses="contexts",
    shares_texts=False,
    options=("condition",),
)
