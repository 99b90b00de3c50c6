"""CoOp and CoCoOp: contexts that were learned from a few labelled images and are read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from otpt.backbones import Backbone
from otpt.calibration import BaseTexts
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.inits import learned_facts, learned_prompt, text_state
from otpt.methods.kinds import INITS, Kind, Methods
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.prompt_tuning.state import PromptState
from otpt.prompts import DEFAULT_PROMPTS, tokenize_prompts
from otpt.prompts.learned import CocoopContext, CoopContext
from otpt.registry import CALIBRATIONS
from otpt.settings import Settings
from otpt.views import ViewRecipe

if TYPE_CHECKING:
    from otpt.methods.path import Batch


def coop_context(settings: Settings, methods: Sequence[Method]) -> CoopContext:
    """The context of CoOp that the methods start from."""
    return learned_prompt(settings, CoopContext, methods)


def _coop(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    learned = coop_context(settings, methods)
    base, texts = _base_classes(learned, methods), None
    if base is not None:
        places = (settings, settings.replace(classes=base))
        prompts = ((settings.prompts or DEFAULT_PROMPTS)[0], learned.prompt())
        found = [text_state(backbone, place, prompt, ()) for place in places for prompt in prompts]
        texts = BaseTexts(*(each.text_features.cpu() for each in found))
    state = text_state(backbone, settings, learned.prompt(), methods)
    return [PromptGroup(learned.kind, methods, backbone, state, settings, base_texts=texts)]


def _check_coop(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    learned = coop_context(settings, methods)
    _base_classes(learned, methods)
    tokenize_prompts(backbone.text, settings.classes, learned.prompt())


def _base_classes(learned: CoopContext, methods: Sequence[Method]) -> tuple[str, ...] | None:
    """The classes that a context was learned on, if a method asks for them."""
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
    """CoCoOp: each image has an initial context of its own, ctx + net(x) of its feature x.

    ``raw`` feeds the feature as the tower gives it, of any norm, as TPT's code does; else of norm one.
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
        state = text_state(
            backbone,
            settings,
            learned.prompt(),
            (),  # each image has a context of its own, so no graph is shared
            kind=ConditionalState,
            context=learned,
            model=backbone,
            raw=condition == "raw",
        )
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
